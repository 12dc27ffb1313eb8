//! The same seed gives the same bits, and a training that goes on from a checkpoint gives those of one
//! that was never interrupted.

mod common;

use std::fs;
use std::path::Path;

use burn::backend::Flex;
use burn::lr_scheduler::LrScheduler;
use burn::lr_scheduler::composed::ComposedLrScheduler;
use burn::module::{Module, ModuleVisitor, Param};
use burn::optim::Optimizer;
use burn::record::{FullPrecisionSettings, Record};
use burn::tensor::Tensor;
use burn_amp::{Amp, Autodiff};
use common::{digits, rows};
use digits::checkpoint::Artifacts;
use digits::model::DigitNet;
use digits::run::Optim;
use serde_json::{Value, json};

type B = Autodiff<Amp<Flex>>;

const EPOCHS: usize = 3;

/// The scale doubles every third step: it goes up and down all the time.
const F16: [&str; 10] = [
    "--precision",
    "f16",
    "--epochs",
    "3",
    "--batch",
    "128",
    "--growth-interval",
    "3",
    "--seed",
    "5",
];

fn part<R: Record<B>>(artifacts: &Artifacts, part: &str, epoch: usize) -> Value {
    let record: R = artifacts.load(part, epoch, &Default::default()).unwrap();
    serde_json::to_value(record.into_item::<FullPrecisionSettings>()).unwrap()
}

/// Everything that a checkpoint holds, ids of parameters included.
fn checkpoint(out: &Path, epoch: usize) -> Value {
    let artifacts = Artifacts::new(out.join("f16"));
    json!({
        "model": part::<<DigitNet<B> as Module<B>>::Record>(&artifacts, "model", epoch),
        "optim": part::<<Optim<B> as Optimizer<DigitNet<B>, B>>::Record>(&artifacts, "optim", epoch),
        "scheduler": part::<<ComposedLrScheduler as LrScheduler>::Record<B>>(&artifacts, "scheduler", epoch),
    })
}

struct Floats(Vec<u32>);

impl ModuleVisitor<B> for Floats {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
        let data = param.val().into_data();
        self.0.extend(data.iter::<f32>().map(f32::to_bits));
    }
}

/// The bits of all parameters and of the running means and variances.
fn parameters(out: &Path, precision: &str) -> Vec<u32> {
    let artifacts = Artifacts::new(out.join(precision));
    let record = artifacts.load::<B, _>("model", 1, &Default::default());
    let model = DigitNet::<B>::new(&Default::default()).load_record(record.unwrap());
    let mut floats = Floats(Vec::new());
    model.visit(&mut floats);
    floats.0
}

fn copy_checkpoint(from: &Path, to: &Path, epochs: &[usize]) {
    let folder = to.join("f16/checkpoint");
    fs::create_dir_all(&folder).unwrap();
    fs::copy(from.join("f16/settings.json"), to.join("f16/settings.json")).unwrap();
    for epoch in epochs {
        for part in ["model", "optim", "scheduler"] {
            let name = format!("{part}-{epoch}.mpk");
            fs::copy(from.join("f16/checkpoint").join(&name), folder.join(&name)).unwrap();
        }
    }
}

fn in_folder<'a>(args: &[&'a str], out: &'a Path, more: &[&'a str]) -> Vec<&'a str> {
    let out = out.to_str().expect("the path is UTF-8");
    [args, &["--out", out], more].concat()
}

#[test]
fn should_give_the_same_bits_for_the_same_seed() {
    let folder = tempfile::tempdir().unwrap();
    let train = |name: &str, precisions: &[&str], seed: &str| {
        let out = folder.path().join(name);
        for precision in precisions {
            let args = ["--epochs", "1", "--seed", seed, "--precision", precision];
            rows(&in_folder(&args, &out, &[]));
        }
        let bits = precisions
            .iter()
            .map(|precision| parameters(&out, precision));
        bits.collect::<Vec<_>>()
    };
    let all = ["f32", "bf16", "f16"];
    let first = train("first", &all, "1");
    assert!(first == train("second", &all, "1"), "the bits differ");
    assert!(first[0] != first[1] && first[1] != first[2]);
    assert!(first[0] != train("other", &["f32"], "2")[0]);
}

#[test]
fn should_go_on_from_a_checkpoint_as_if_never_interrupted() {
    let folder = tempfile::tempdir().unwrap();
    let [whole, resumed] = ["whole", "resumed"].map(|name| folder.path().join(name));
    let mut expected = rows(&in_folder(&F16, &whole, &[])).remove(0);
    assert!(expected["steps_skipped"].as_u64() > Some(2), "{expected}");

    // What a program leaves that is killed while it writes the files of the last epoch.
    copy_checkpoint(&whole, &resumed, &[EPOCHS - 1, EPOCHS]);
    let before = checkpoint(&resumed, EPOCHS - 1);
    assert_ne!(before["optim"], checkpoint(&whole, EPOCHS)["optim"]);
    let torn = resumed.join(format!("f16/checkpoint/optim-{EPOCHS}.mpk"));
    let bytes = fs::read(&torn).unwrap();
    fs::write(&torn, &bytes[..bytes.len() / 2]).unwrap();

    let mut actual = rows(&in_folder(&F16, &resumed, &["--resume"])).remove(0);
    for row in [&mut expected, &mut actual] {
        let row = row.as_object_mut().unwrap();
        row.remove("seconds");
        row.remove("peak_bytes");
    }
    assert_eq!(actual, expected);
    let same = checkpoint(&resumed, EPOCHS) == checkpoint(&whole, EPOCHS);
    assert!(same, "the checkpoints differ");

    // All epochs are done: nothing is trained, and the same is reported.
    let again = rows(&in_folder(&F16, &resumed, &["--resume"])).remove(0);
    assert_eq!(again["test_loss"], expected["test_loss"]);
    assert_eq!(again["loss_scale"], expected["loss_scale"]);
    assert_eq!(again["steps_applied"], expected["steps_applied"]);

    let refused = |args: &[&str], message: &str| {
        let output = digits(args);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(
            !output.status.success() && errors.contains(message),
            "{errors}"
        );
    };
    refused(&in_folder(&F16, &whole, &[]), "holds checkpoints already");
    let other = in_folder(
        &["--precision", "f16", "--epochs", "9"],
        &whole,
        &["--resume"],
    );
    refused(
        &other,
        "holds a training with batch 128, it cannot go on with 32",
    );
}

#[test]
fn should_begin_where_there_is_no_checkpoint() {
    let folder = tempfile::tempdir().unwrap();
    let args = ["--precision", "f32", "--epochs", "1", "--batch", "1000"];
    let rows = rows(&in_folder(&args, folder.path(), &["--resume"]));
    assert_eq!(rows[0]["steps_applied"], 2);
}
