//! Checkpoint files: complete or not there, and optimizer state in f32 whatever the recorder stores.

mod common;

use std::fs;
use std::path::{Path, PathBuf};

use burn::backend::Flex;
use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::optim::adaptor::OptimizerAdaptor;
use burn::optim::{Adam, AdamConfig, GradientsParams, Optimizer};
use burn::record::{
    BinFileRecorder, BinGzFileRecorder, FileRecorder, FullPrecisionSettings, HalfPrecisionSettings,
    JsonGzFileRecorder, NamedMpkFileRecorder, NamedMpkGzFileRecorder, PrecisionSettings,
    PrettyJsonFileRecorder, Record, Recorder, RecorderError,
};

use burn_amp::record::AtomicFileRecorder;
use burn_amp::{
    Amp, AmpConfig, AmpOptimizer, AmpOptimizerConfig, AmpOptimizerRecord, Autocast, Autodiff,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use common::{normal, parameter_bits, randomize};

type B = Autodiff<Amp<Flex>>;
type AdamOf = OptimizerAdaptor<Adam, Linear<B>, B>;
type AdamRecord = <AdamOf as Optimizer<Linear<B>, B>>::Record;
type OptimRecord = AmpOptimizerRecord<AdamRecord>;
type Mpk = NamedMpkFileRecorder<FullPrecisionSettings>;

fn linear(seed: u64) -> Linear<B> {
    randomize(LinearConfig::new(3, 5).init(&Default::default()), seed)
}

/// An optimizer whose moments are no f16 values.
fn stepped() -> (AmpOptimizer<AdamOf>, Linear<B>) {
    let amp = Autocast::new(&AmpConfig::f16()).unwrap();
    amp.run(|| {
        let mut optim = AmpOptimizerConfig::new().init(AdamConfig::new().init());
        let mut model = linear(1);
        for step in 0..3 {
            let x = normal::<B, 2>([4, 3], step, &Default::default()) * 1e-3;
            let loss = model.forward(x).powi_scalar(2).mean();
            let grads = GradientsParams::from_grads(loss.backward(), &model);
            model = optim.step(1e-2, model, grads);
        }
        assert_eq!(optim.counters().applied, 3);
        (optim, model)
    })
}

fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<_> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

fn load<R: Recorder<B, LoadArgs = PathBuf>, T: Record<B>>(
    recorder: &R,
    path: &Path,
) -> Result<T, RecorderError> {
    recorder.load(path.to_owned(), &Default::default())
}

/// All numbers of a record, whatever the order of its maps.
fn numbers<T: Record<B>>(record: T) -> Value {
    serde_json::to_value(record.into_item::<FullPrecisionSettings>()).unwrap()
}

#[test]
fn files_are_those_of_the_wrapped_recorder() {
    fn check<R: FileRecorder<B>>() {
        let folder = tempfile::tempdir().unwrap();
        let (plain, ours) = (folder.path().join("plain-1"), folder.path().join("ours-1"));
        let model = linear(2);
        let recorder = AtomicFileRecorder::<R>::default();
        Recorder::<B>::record(&R::default(), model.clone().into_record(), plain).unwrap();
        Recorder::<B>::record(&recorder, model.clone().into_record(), ours.clone()).unwrap();

        let extension = R::file_extension();
        let expected = [
            format!("ours-1.{extension}"),
            format!("plain-1.{extension}"),
        ];
        assert_eq!(names(folder.path()), expected);
        let bytes = |name: &str| fs::read(folder.path().join(name)).unwrap();
        assert_eq!(bytes(&expected[0]), bytes(&expected[1]));

        // Over the one that is there, and read by both.
        let other = linear(3);
        let expected = parameter_bits(&other);
        Recorder::<B>::record(&recorder, other.into_record(), ours.clone()).unwrap();
        for record in [load(&recorder, &ours), load(&R::default(), &ours)] {
            assert_eq!(
                parameter_bits(&linear(4).load_record(record.unwrap())),
                expected
            );
        }
        assert_eq!(names(folder.path()).len(), 2);
    }
    check::<NamedMpkFileRecorder<FullPrecisionSettings>>();
    check::<NamedMpkGzFileRecorder<FullPrecisionSettings>>();
    check::<BinFileRecorder<FullPrecisionSettings>>();
    check::<BinGzFileRecorder<FullPrecisionSettings>>();
    check::<PrettyJsonFileRecorder<FullPrecisionSettings>>();
    check::<JsonGzFileRecorder<FullPrecisionSettings>>();
}

#[test]
fn a_name_may_have_dots_and_no_folder_has_to_exist() {
    let folder = tempfile::tempdir().unwrap();
    let recorder = AtomicFileRecorder::new(Mpk::new());
    let path = folder.path().join("new/folder/model.v2.mpk");
    Recorder::<B>::record(&recorder, linear(5).into_record(), path.clone()).unwrap();
    assert_eq!(names(path.parent().unwrap()), ["model.v2.mpk"]);
}

/// Writes as Burn's recorders do on a disk that is full: a part, and no error.
#[derive(Debug, Clone, Default)]
struct FullDisk<R>(R);

impl<R: FileRecorder<B>> FileRecorder<B> for FullDisk<R> {
    fn file_extension() -> &'static str {
        R::file_extension()
    }
}

impl<R: FileRecorder<B>> Recorder<B> for FullDisk<R> {
    type Settings = R::Settings;
    type RecordArgs = PathBuf;
    type RecordOutput = ();
    type LoadArgs = PathBuf;

    fn save_item<I: Serialize>(&self, item: I, mut path: PathBuf) -> Result<(), RecorderError> {
        self.0.save_item(item, path.clone())?;
        path.set_extension(R::file_extension());
        let bytes = fs::read(&path).unwrap();
        fs::write(path, &bytes[..bytes.len() / 2]).unwrap();
        Ok(())
    }

    fn load_item<I: DeserializeOwned>(&self, path: &mut PathBuf) -> Result<I, RecorderError> {
        self.0.load_item(path)
    }
}

#[test]
fn a_disk_that_is_full_leaves_the_file_of_before() {
    fn check<R: FileRecorder<B>>() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model-1");
        let model = linear(6);
        let before = parameter_bits(&model);
        let recorder = AtomicFileRecorder::<R>::default();
        Recorder::<B>::record(&recorder, model.into_record(), path.clone()).unwrap();

        let full = AtomicFileRecorder::<FullDisk<R>>::default();
        let error = Recorder::<B>::record(&full, linear(7).into_record(), path.clone());
        let error = error.unwrap_err().to_string();
        assert!(
            error.contains("cannot read back what was written to"),
            "{error}"
        );
        assert!(error.contains("model-1."), "{error}");
        assert_eq!(names(folder.path()).len(), 1);
        let record = load(&recorder, &path).unwrap();
        assert_eq!(parameter_bits(&linear(8).load_record(record)), before);
    }
    check::<NamedMpkFileRecorder<FullPrecisionSettings>>();
    check::<NamedMpkGzFileRecorder<FullPrecisionSettings>>();
    check::<BinFileRecorder<FullPrecisionSettings>>();
}

#[test]
fn a_folder_in_the_place_of_the_file_is_an_error_with_its_path() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model-1.mpk");
    fs::create_dir(&path).unwrap();
    let recorder = AtomicFileRecorder::new(Mpk::new());
    let error = Recorder::<B>::record(&recorder, linear(9).into_record(), path.clone());
    let error = error.unwrap_err().to_string();
    assert!(
        error.contains("cannot write") && error.contains("model-1.mpk"),
        "{error}"
    );
    assert_eq!(names(folder.path()), ["model-1.mpk"]);
}

#[test]
fn a_truncated_or_foreign_file_is_an_error_with_its_path() {
    fn check<R: FileRecorder<B>>() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("optim-1");
        let recorder = AtomicFileRecorder::<R>::default();
        let (optim, model) = stepped();
        let record = Optimizer::<Linear<B>, B>::to_record(&optim);
        Recorder::<B>::record(&recorder, record, path.clone()).unwrap();
        let file = path.with_extension(R::file_extension());
        let bytes = fs::read(&file).unwrap();

        let refused = |bytes: &[u8]| {
            fs::write(&file, bytes).unwrap();
            match load::<_, OptimRecord>(&recorder, &path) {
                Err(RecorderError::DeserializeError(error)) => {
                    assert!(
                        error.contains("optim-1.") && error.contains("not complete"),
                        "{error}"
                    );
                }
                other => panic!(
                    "{} bytes: {:?}",
                    bytes.len(),
                    other.map(|record| record.counters)
                ),
            }
        };
        for length in [0, 1, bytes.len() / 3, bytes.len() / 2, bytes.len() / 10 * 9] {
            refused(&bytes[..length]);
        }
        refused(b"not a checkpoint, but a text that is as long as one may well be");
        // A module's, and a plain optimizer's.
        Recorder::<B>::record(&recorder, model.into_record(), path.clone()).unwrap();
        refused(&fs::read(&file).unwrap());
        let plain = Optimizer::<Linear<B>, B>::to_record(optim.inner());
        Recorder::<B>::record(&recorder, plain, path.clone()).unwrap();
        refused(&fs::read(&file).unwrap());

        fs::write(&file, bytes).unwrap();
        let record = load::<_, OptimRecord>(&recorder, &path).unwrap();
        assert_eq!(record.counters.applied, 3);
    }
    check::<NamedMpkFileRecorder<FullPrecisionSettings>>();
    check::<NamedMpkGzFileRecorder<FullPrecisionSettings>>();
    check::<PrettyJsonFileRecorder<FullPrecisionSettings>>();
    check::<BinFileRecorder<FullPrecisionSettings>>();
}

/// A record that makes nothing of what it reads, as those of Burn do for some foreign files.
#[derive(Clone)]
struct Panics;

impl Record<B> for Panics {
    type Item<S: PrecisionSettings> = u8;

    fn into_item<S: PrecisionSettings>(self) -> u8 {
        7
    }

    fn from_item<S: PrecisionSettings>(item: u8, _device: &burn::tensor::Device<B>) -> Self {
        panic!("{item} is no number of parameters");
    }
}

#[test]
fn a_panic_of_a_record_is_an_error_with_its_path() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model-4");
    let recorder = AtomicFileRecorder::new(Mpk::new());
    Recorder::<B>::record(&recorder, Panics, path.clone()).unwrap();
    let error = load::<_, Panics>(&recorder, &path)
        .map(drop)
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("model-4.mpk") && error.contains("7 is no number"),
        "{error}"
    );
}

#[test]
fn a_file_that_is_not_there_is_told_from_one_that_is_broken() {
    let path = Path::new("no/such/folder/model-3");
    let recorder = AtomicFileRecorder::new(Mpk::new());
    let error = load::<_, OptimRecord>(&recorder, path)
        .map(drop)
        .unwrap_err();
    assert!(
        matches!(&error, RecorderError::FileNotFound(text) if text.contains("model-3.mpk")),
        "{error}"
    );
}

#[test]
fn moments_are_stored_in_f32_by_a_recorder_of_half_precision() {
    fn check<R: FileRecorder<B>>() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("optim");
        let (optim, _) = stepped();
        let record = Optimizer::<Linear<B>, B>::to_record(&optim);
        let expected = numbers(record.optim.clone());
        let recorder = R::default();
        Recorder::<B>::record(&recorder, record, path.clone()).unwrap();
        let loaded: OptimRecord = load(&recorder, &path).unwrap();
        assert_eq!(numbers(loaded.optim), expected);
    }
    check::<NamedMpkFileRecorder<HalfPrecisionSettings>>();
    check::<BinGzFileRecorder<HalfPrecisionSettings>>();
}
