//! Training on Vulkan gives what training on Flex gives, in f16, with Burn's fusion and without.
//!
//! Mesa's lavapipe is enough: Debian's `mesa-vulkan-drivers`. Where there is no Vulkan device, the test
//! says so and passes, unless `BURN_AMP_REQUIRE_VULKAN` is set.

#![recursion_limit = "256"]

use burn::backend::wgpu::WgpuDevice;
use burn::backend::{Flex, Vulkan};
use burn::module::Module;
use burn::optim::AdamWConfig;
use burn::record::{BinBytesRecorder, FullPrecisionSettings, Recorder};
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn_amp::{Amp, AmpConfig, AmpDevice, AmpOptimizerConfig, Autodiff};
use char_gpt::data::{Batcher, Corpus};
use char_gpt::model::{Gpt, GptConfig};
use char_gpt::train::{Plan, train_steps};

type Fused = Vulkan;

const SEQ: usize = 16;
const STEPS: usize = 5;

fn config(corpus: &Corpus) -> GptConfig {
    GptConfig::new(corpus.vocab().len(), SEQ)
        .with_width(32)
        .with_heads(2)
        .with_layers(1)
        .with_dropout(0.0)
}

/// Starts from `weights` and returns the losses, and what the first weights have become.
fn losses<B: AutodiffBackend>(weights: Vec<u8>, device: &B::Device) -> Vec<f32>
where
    B::Device: AmpDevice,
{
    AmpConfig::f16().init(device).unwrap();
    let corpus = Corpus::bundled();
    let record = BinBytesRecorder::<FullPrecisionSettings>::new()
        .load(weights, device)
        .unwrap();
    let model = config(&corpus).init::<B>(device).load_record(record);
    let mut optim = AmpOptimizerConfig::new().init(AdamWConfig::new().init::<B, Gpt<B>>());
    let plan = Plan {
        steps: STEPS,
        learning_rate: 1e-2,
        warmup: 1,
    };
    let mut batcher = Batcher::new(&corpus, 2, SEQ, 7).unwrap();
    let trained = train_steps(model, &mut optim, &mut batcher, &plan, device, |_| ()).unwrap();
    assert_eq!(optim.counters().applied as usize, STEPS);
    trained.losses
}

#[test]
#[allow(clippy::print_stderr)]
fn should_train_as_on_flex() {
    let device = WgpuDevice::DefaultDevice;
    if std::panic::catch_unwind(|| Fused::sync(&WgpuDevice::DefaultDevice)).is_err() {
        assert!(
            std::env::var_os("BURN_AMP_REQUIRE_VULKAN").is_none(),
            "there has to be a Vulkan device: install mesa-vulkan-drivers"
        );
        eprintln!("skipped: no Vulkan device; mesa-vulkan-drivers provides one on the CPU");
        return;
    }
    let cpu = Default::default();
    Flex::seed(&cpu, 1);
    let model = config(&Corpus::bundled()).init::<Flex>(&cpu);
    let weights = BinBytesRecorder::<FullPrecisionSettings>::new()
        .record(model.into_record(), ())
        .unwrap();

    let on_flex = losses::<Autodiff<Amp<Flex>>>(weights.clone(), &cpu);
    let on_vulkan = losses::<Autodiff<Amp<Fused>>>(weights, &device);
    assert!(on_flex[STEPS - 1] < on_flex[0] - 0.2, "{on_flex:?}");
    for (flex, vulkan) in on_flex.iter().zip(&on_vulkan) {
        let error = (flex - vulkan).abs();
        assert!(error < 2e-3 * flex, "{on_vulkan:?}, on Flex {on_flex:?}");
    }
}
