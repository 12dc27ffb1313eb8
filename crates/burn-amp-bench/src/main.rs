//! Benchmarks that are not about time.
use burn_amp::Precision;
use burn_amp::memory::{HeapMeter, MemoryMeter};
use burn_amp_bench::gpt::{AttentionKind, GptConfig};
use burn_amp_bench::memory::{Model, measure};
use burn_amp_bench::resnet::ResNetConfig;

#[global_allocator]
static HEAP: HeapMeter = HeapMeter::system();

fn main() {
    let meter = MemoryMeter::new(&HEAP);
    let which: Vec<String> = std::env::args().collect();
    let gpt = GptConfig {
        batch: 8,
        tokens: 256,
        width: 256,
        heads: 8,
        layers: 4,
        vocabulary: 512,
        dropout: 0.0,
        attention: AttentionKind::Explicit,
    };
    let models = [
        ("explicit", Model::Gpt(gpt)),
        (
            "op",
            Model::Gpt(GptConfig {
                attention: AttentionKind::Op,
                ..gpt
            }),
        ),
        (
            "drop",
            Model::Gpt(GptConfig {
                dropout: 0.1,
                ..gpt
            }),
        ),
        (
            "resnet",
            Model::ResNet(ResNetConfig {
                batch: 8,
                size: 32,
                channels: 32,
                layers: 12,
                classes: 10,
            }),
        ),
    ];
    for (name, model) in models {
        if which.len() > 1 && which[1] != name {
            continue;
        }
        for p in [Precision::F32, Precision::Bf16] {
            let t = std::time::Instant::now();
            let m = measure(&meter, &model, p).unwrap();
            println!(
                "{name} {p} kept {:.1} peak {:.1} {:?}",
                m.kept as f64 / 1048576.,
                m.peak as f64 / 1048576.,
                t.elapsed()
            );
        }
    }
}
