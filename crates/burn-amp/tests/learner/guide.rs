//! As in Burn's guide: the same training in f32 and in mixed precision, and what differs.

use burn::module::Module;
use burn::optim::AdamConfig;
use burn::record::CompactRecorder;
use burn::tensor::backend::Backend;
use burn::train::LearnerSummary;
use burn_amp::{AmpConfig, Precision};

use crate::common::SplitMix64;
use crate::guide_loop::{CLASSES, Image, ImageBatcher, Model, ModelConfig, SIDE, TrainingConfig};
use crate::support::{Configured, folder};
use crate::{guide_amp, guide_plain};

/// Noise, and a quarter that is brighter.
fn images(count: usize, seed: u64) -> Vec<Image> {
    let mut rng = SplitMix64::new(seed);
    let half = SIDE / 2;
    let image = |index: usize| {
        let label = index % CLASSES;
        let pixels = (0..SIDE * SIDE).map(|pixel| {
            let quarter = 2 * (pixel / SIDE / half) + pixel % SIDE / half;
            let light = if quarter == label { 0.6 } else { 0.0 };
            light + 0.5 * rng.next_normal() as f32
        });
        Image {
            pixels: pixels.collect(),
            label: label as i64,
        }
    };
    (0..count).map(image).collect()
}

fn data() -> [Vec<Image>; 2] {
    [images(320, 1), images(80, 2)]
}

fn config() -> TrainingConfig {
    TrainingConfig::new(ModelConfig::new(CLASSES, 32), AdamConfig::new())
}

fn accuracy<B: Backend>(model: &Model<B>) -> f64 {
    use burn::data::dataloader::batcher::Batcher;
    let images = images(200, 3);
    let count = images.len();
    let batch = Batcher::<B, _, _>::batch(&ImageBatcher, images, &Default::default());
    let guess = model.forward(batch.images).argmax(1).reshape([count]);
    let hits = guess.equal(batch.targets).int().sum().into_data();
    hits.iter::<i64>().sum::<i64>() as f64 / count as f64
}

/// The accuracy of each epoch on the test images, as the summary has it.
fn accuracies(artifact_dir: &str) -> Vec<f64> {
    let summary = LearnerSummary::new(artifact_dir, &["Accuracy", "Loss"]).unwrap();
    let metric = &summary.metrics.valid[0];
    assert_eq!(metric.name, "Accuracy");
    metric.entries.iter().map(|entry| entry.value).collect()
}

/// Trains, goes on from a checkpoint, and returns the accuracies of both.
fn train_and_resume<B: Backend>(
    artifact_dir: &str,
    run: impl Fn(TrainingConfig) -> Model<B>,
) -> [f64; 2] {
    let model = run(config());
    let whole = accuracy(&model);
    let epochs = accuracies(artifact_dir);
    assert_eq!(epochs.len(), config().num_epochs);
    // What was saved, in 16 bits, is as good.
    let file = format!("{artifact_dir}/model");
    let loaded = config().model.init::<B>(&Default::default());
    let loaded = loaded
        .load_file(file, &CompactRecorder::new(), &Default::default())
        .unwrap();
    assert!((accuracy(&loaded) - whole).abs() < 0.02);

    let resumed = run(TrainingConfig {
        checkpoint: Some(config().num_epochs - 1),
        ..config()
    });
    [whole, accuracy(&resumed)]
}

#[test]
fn the_guides_training_works_and_resumes_in_every_precision() {
    let _device = Configured::take();
    let plain = {
        let folder = folder();
        let artifact_dir = folder.path().to_str().unwrap();
        train_and_resume(artifact_dir, |config| {
            guide_plain::run(artifact_dir, config, data()).unwrap()
        })
    };
    assert!(
        plain.iter().all(|accuracy| *accuracy > 90.0 / 100.0),
        "{plain:?}"
    );
    for precision in [Precision::F32, Precision::Bf16, Precision::F16] {
        let folder = folder();
        let artifact_dir = folder.path().to_str().unwrap();
        let amp = folder.path().join("amp.json");
        AmpConfig::new(precision).save(amp).unwrap();
        let ours = train_and_resume(artifact_dir, |config| {
            guide_amp::run(artifact_dir, config, data()).unwrap()
        });
        for (ours, plain) in ours.iter().zip(plain) {
            assert!(
                (ours - plain).abs() < 0.05,
                "{precision}: {ours}, plain {plain}"
            );
        }
        if precision == Precision::F32 {
            assert_eq!(ours, plain);
        }
    }
}

/// The text that a unified diff makes of another one.
fn patched(text: &str, diff: &str) -> String {
    let mut rest = text.lines();
    let mut patched = Vec::new();
    let hunks = diff.split("\n@@ ").skip(1);
    for hunk in hunks {
        let (position, lines) = hunk.split_once(" @@\n").unwrap();
        let first: usize = position[1..].split(',').next().unwrap().parse().unwrap();
        let done = text.lines().count() - rest.clone().count();
        patched.extend(rest.by_ref().take(first - 1 - done));
        for line in lines.lines() {
            let (sign, line) = line.split_at(line.len().min(1));
            if sign != "+" {
                assert_eq!(rest.next(), Some(line));
            }
            if sign != "-" {
                patched.push(line);
            }
        }
    }
    patched.extend(rest);
    patched.join("\n") + "\n"
}

#[test]
fn the_page_shows_exactly_the_lines_that_change() {
    let diff = include_str!("../../../../docs/guide-loop.diff");
    let plain = include_str!("guide_plain.rs");
    let amp = include_str!("guide_amp.rs");
    assert_eq!(
        patched(plain, diff),
        amp,
        "docs/guide-loop.diff is out of date"
    );
    let changed = |sign| {
        diff.lines()
            .skip(2)
            .filter(|line| line.starts_with(sign))
            .count()
    };
    assert_eq!((changed('-'), changed('+')), (3, 5));
}
