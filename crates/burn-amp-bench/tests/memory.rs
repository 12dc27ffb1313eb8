//! The bytes that the benchmark reports, guarded: more than 2 % over what was measured fails.

use std::sync::{Mutex, PoisonError};

use burn::backend::autodiff::checkpoint::strategy::BalancedCheckpointing;
use burn::backend::{Autodiff as PlainAutodiff, Flex};
use burn_amp::memory::{HeapMeter, MemoryMeter};
use burn_amp::{Amp, AmpConfig, Autocast, Autodiff, Precision};
use burn_amp_bench::gpt::{AttentionKind, GptConfig};
use burn_amp_bench::memory::{CONV_NET, Model, SMALL_STACK, measure, pass};
use burn_amp_bench::resnet::ResNetConfig;

#[global_allocator]
static HEAP: HeapMeter = HeapMeter::system();

static METER: MemoryMeter<&HeapMeter> = MemoryMeter::new(&HEAP);

/// The heap is one for all tests: one of them at a time.
static ALONE: Mutex<()> = Mutex::new(());

const MIB: f64 = (1 << 20) as f64;

const HALVES: [Precision; 2] = [Precision::Bf16, Precision::F16];

/// A stack that is quick to run.
const STACK: GptConfig = GptConfig {
    batch: 4,
    tokens: 128,
    width: 128,
    heads: 4,
    layers: 2,
    vocabulary: 128,
    dropout: 0.0,
    attention: AttentionKind::Explicit,
};

fn kept_mib(model: Model, precision: Precision) -> f64 {
    let measurement = measure(&METER, &model, precision).expect("Flex has every precision");
    assert!(measurement.peak_bytes >= measurement.kept_bytes);
    measurement.kept_bytes as f64 / MIB
}

fn assert_within_two_percent(what: &str, kept: f64, measured: f64) {
    assert!(
        (0.98 * measured..1.02 * measured).contains(&kept),
        "{what} keeps {kept:.3} MiB, {measured} when this was written"
    );
}

#[test]
fn should_keep_what_was_measured_for_transformer_stacks() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let op = AttentionKind::Op;
    let cases = [
        ("explicit attention", STACK, 16.12, 5.44, 0.34),
        (
            "the attention op",
            GptConfig {
                attention: op,
                ..STACK
            },
            16.17,
            4.43,
            0.28,
        ),
        (
            "explicit attention with dropout",
            GptConfig {
                dropout: 0.1,
                ..STACK
            },
            19.37,
            8.07,
            0.45,
        ),
    ];
    for (what, config, plain, half, ratio) in cases {
        let model = Model::Gpt(config);
        let in_plain = kept_mib(model, Precision::F32);
        assert_within_two_percent(&format!("{what} in plain Burn"), in_plain, plain);
        for precision in HALVES {
            let kept = kept_mib(model, precision);
            assert_within_two_percent(&format!("{what} in {precision}"), kept, half);
            assert!(kept <= ratio * in_plain, "{what}: {kept} of {in_plain}");
        }
    }
}

/// The stack of the README's table. PyTorch's autocast keeps 177.1 MiB by its rules for CUDA.
#[test]
fn should_keep_and_need_what_the_table_says() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let measurement = measure(&METER, &Model::Gpt(SMALL_STACK), Precision::Bf16).unwrap();
    let [kept, peak] =
        [measurement.kept_bytes, measurement.peak_bytes].map(|bytes| bytes as f64 / MIB);
    assert_within_two_percent("the smaller stack", kept, 100.2);
    assert!(
        peak <= 128.6,
        "peak {peak:.1} MiB, 126.0 when this was written"
    );
}

#[test]
fn should_keep_what_was_measured_for_a_residual_network() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let model = Model::ResNet(ResNetConfig {
        batch: 4,
        size: 16,
        ..CONV_NET
    });
    let plain = kept_mib(model, Precision::F32);
    assert_within_two_percent("plain Burn", plain, 8.05);
    for precision in HALVES {
        let kept = kept_mib(model, precision);
        assert_within_two_percent(&precision.to_string(), kept, 3.363);
        assert!(kept <= 0.5 * plain, "{kept} of {plain}");
    }
}

/// Burn's strategy keeps the operands of ops that it computes again, ours among them, needed or not.
#[test]
fn should_keep_less_with_checkpointing_too() {
    type Checkpointed = Autodiff<Amp<Flex>, BalancedCheckpointing>;
    type Plain = PlainAutodiff<Flex, BalancedCheckpointing>;

    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let network = ResNetConfig {
        batch: 4,
        size: 16,
        ..CONV_NET
    };
    for model in [Model::Gpt(STACK), Model::ResNet(network)] {
        let plain = pass::<Plain, _>(&METER, &model).kept;
        for config in [AmpConfig::bf16(), AmpConfig::f16()] {
            let amp = Autocast::new(&config).unwrap();
            let kept = amp.run(|| pass::<Checkpointed, _>(&METER, &model).kept);
            assert!(
                kept as f64 <= 0.60 * plain as f64,
                "{}: {kept} of {plain}",
                model.name()
            );
        }
    }
}
