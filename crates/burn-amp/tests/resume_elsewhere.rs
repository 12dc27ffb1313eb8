//! Burn's `Learner` reads checkpoints for the default device, wherever it trains. A binary of its own: which
//! devices are configured is one for the process.

#[path = "multi_device/backend.rs"]
#[allow(dead_code)]
mod backend;

use burn::module::Param;
use burn::optim::adaptor::OptimizerAdaptor;
use burn::optim::{GradientsParams, Optimizer, Sgd, SgdConfig};
use burn::record::{BinBytesRecorder, FullPrecisionSettings, Recorder};
use burn::tensor::Tensor;
use burn_amp::{Amp, AmpConfig, AmpOptimizer, AmpOptimizerConfig, Autodiff};

use backend::{Worker, Workers};

type Inner = Amp<Workers>;
type B = Autodiff<Inner>;
type Module = Param<Tensor<B, 1>>;
type Optim = AmpOptimizer<OptimizerAdaptor<Sgd<Inner>, Module, B>>;

fn new() -> Optim {
    AmpOptimizerConfig::new().init(SgdConfig::new().init())
}

/// The scale of a backward pass on a device.
fn scale(device: Worker) -> f32 {
    let x = Tensor::<B, 1>::ones([1], &device).require_grad();
    x.sum().backward().scale()
}

fn skip(optim: &mut Optim, device: Worker) {
    let module: Module = Param::from_tensor(Tensor::zeros([1], &device));
    let mut grads = GradientsParams::new();
    let infinity = Tensor::<Inner, 1>::full([1], f32::INFINITY, &device);
    grads.register::<Inner, 1>(module.id, infinity);
    optim.step(0.1, module, grads);
    assert!(optim.outcome().unwrap().is_skipped());
}

#[test]
fn a_record_for_the_default_device_goes_where_the_training_is() {
    let recorder = BinBytesRecorder::<FullPrecisionSettings>::new();
    let save = |optim: &Optim| {
        let record = Optimizer::<Module, B>::to_record(optim);
        Recorder::<B>::record(&recorder, record, ()).unwrap()
    };
    let load = |bytes: Vec<u8>, device: &Worker| -> Optim {
        new().load_record(Recorder::<B>::load(&recorder, bytes, device).unwrap())
    };
    let device = Worker(3);
    AmpConfig::f16().init(&device).unwrap();
    let mut optim = new();
    skip(&mut optim, device);
    let bytes = save(&optim);

    AmpConfig::f16().init(&device).unwrap();
    assert_eq!(scale(device), 65536.0);
    let mut resumed = load(bytes.clone(), &Worker::default());
    assert_eq!((resumed.scale(), scale(device)), (32768.0, 32768.0));
    skip(&mut resumed, device);
    assert_eq!(scale(device), 16384.0);

    // A group.
    let group = [Worker(4), device];
    AmpConfig::f16().init_devices(&group).unwrap();
    load(bytes.clone(), &Worker::default());
    assert_eq!(group.map(scale), [32768.0; 2]);

    // Another device that was said is another device, and of two that are trained apart none is meant.
    load(bytes.clone(), &Worker(5));
    assert_eq!(group.map(scale), [32768.0; 2]);
    skip(&mut new(), device);
    AmpConfig::f16().init(&Worker(6)).unwrap();
    load(bytes.clone(), &Worker::default());
    assert_eq!(
        (group.map(scale), scale(Worker(6))),
        ([16384.0; 2], 65536.0)
    );

    // The default device, where it is configured.
    AmpConfig::f16().init(&Worker::default()).unwrap();
    load(bytes, &Worker::default());
    assert_eq!(scale(Worker::default()), 32768.0);
}
