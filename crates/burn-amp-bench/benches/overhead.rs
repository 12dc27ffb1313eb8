//! What `Amp` costs when precision is off: a training step of a small MLP on Flex, on the plain
//! backend and on the decorated one. Run it with `cargo bench -p burn-amp-bench --bench overhead`.
//!
//! Criterion measures each on its own. The ratio at the end comes from steps that alternate, so that
//! what else the machine does weighs on both alike; the target is 1.02 at most.

use std::io::{self, Write};
use std::time::{Duration, Instant};

use burn::backend::{Autodiff, Flex};
use burn::optim::AdamWConfig;
use burn_amp::{Amp, AmpOptimizerConfig};
use burn_amp_bench::Training;
use criterion::Criterion;

const BATCH: usize = 16;
const WIDTH: usize = 64;
const PAIRS: usize = 2000;

fn main() -> io::Result<()> {
    let mut plain = Training::<Autodiff<Flex>, _>::new(BATCH, WIDTH, AdamWConfig::new().init());
    let mut amp = Training::<burn_amp::Autodiff<Amp<Flex>>, _>::new(
        BATCH,
        WIDTH,
        AmpOptimizerConfig::new().init(AdamWConfig::new().init()),
    );

    let mut criterion = Criterion::default().configure_from_args();
    criterion.bench_function("mlp step, plain", |bencher| bencher.iter(|| plain.step()));
    criterion.bench_function("mlp step, amp off", |bencher| bencher.iter(|| amp.step()));
    criterion.final_summary();

    let [plain, amp] = alternate(&mut || plain.step(), &mut || amp.step());
    writeln!(
        io::stdout(),
        "batch {BATCH}, width {WIDTH}, f32 on Flex, median of {PAIRS} alternating steps: plain \
         {plain:?}, amp off {amp:?}, ratio {:.3}",
        amp.as_secs_f64() / plain.as_secs_f64()
    )
}

/// The median time of each of two steps, taken in turns.
fn alternate(a: &mut dyn FnMut(), b: &mut dyn FnMut()) -> [Duration; 2] {
    let time = |step: &mut dyn FnMut()| {
        let start = Instant::now();
        step();
        start.elapsed()
    };
    let (mut a_times, mut b_times) = (Vec::new(), Vec::new());
    for pair in 0..PAIRS {
        // Whoever comes second finds the caches as the first left them.
        if pair % 2 == 0 {
            a_times.push(time(a));
            b_times.push(time(b));
        } else {
            b_times.push(time(b));
            a_times.push(time(a));
        }
    }
    [a_times, b_times].map(|mut times| {
        times.sort_unstable();
        times[times.len() / 2]
    })
}
