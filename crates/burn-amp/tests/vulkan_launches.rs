//! What a training step launches, counted in what CubeCL logs: alone in its process, since the log is
//! that of all threads.
//!
//! Needs a Vulkan device, as the tests in `vulkan` do.

#![recursion_limit = "256"]

// What the tests in `vulkan` find their device by; the rest of it is not needed here.
#[allow(dead_code)]
#[path = "vulkan/device.rs"]
mod device;

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use burn::backend::wgpu::WgpuDevice;
use burn::module::Module;
use burn::nn::{LayerNorm, LayerNormConfig, Linear, LinearConfig};
use burn::optim::AdamWConfig;
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::tensor::{Distribution, Tensor, activation};
use burn_amp::loss_scale::LossScaleConfig;
use burn_amp::{Amp, AmpConfig, Autodiff, Counters, GradScaler};
use burn_amp_kernels::counters::{Launches, launches};
use burn_amp_kernels::unscale::gradients_at_once;
use cubecl::Runtime as _;
use cubecl::config::{CubeClRuntimeConfig, RuntimeConfig as _};
use cubecl::wgpu::WgpuRuntime;
use device::{Fused, Plain};

const WIDTH: usize = 24;
const ROWS: usize = 16;

/// Products without biases, whose gradients would be cast to be summed.
#[derive(Module, Debug)]
struct Stack<B: Backend> {
    layers: Vec<Linear<B>>,
    norms: Vec<LayerNorm<B>>,
}

impl<B: Backend> Stack<B> {
    fn new(layers: usize, norms: usize, device: &B::Device) -> Self {
        let layer = LinearConfig::new(WIDTH, WIDTH).with_bias(false);
        let norm = LayerNormConfig::new(WIDTH);
        Self {
            layers: (0..layers).map(|_| layer.init(device)).collect(),
            norms: (0..norms).map(|_| norm.init(device)).collect(),
        }
    }

    fn forward(&self, mut x: Tensor<B, 2>) -> Tensor<B, 2> {
        for norm in &self.norms {
            x = norm.forward(x);
        }
        for layer in &self.layers {
            x = activation::relu(layer.forward(x));
        }
        x
    }
}

/// What a step did.
struct Step {
    /// Launches by kernel name.
    kernels: BTreeMap<String, usize>,
    ours: Launches,
    reads: u64,
}

impl Step {
    fn count(&self, part: &str) -> usize {
        let named = self.kernels.iter().filter(|(name, _)| name.contains(part));
        named.map(|(_, count)| count).sum()
    }

    fn total(&self) -> usize {
        self.kernels.values().sum()
    }
}

/// Takes a step with a scaler, after one that leaves nothing to be prepared.
fn step<B: AutodiffBackend<Device = WgpuDevice>>(layers: usize, norms: usize, log: &Path) -> Step {
    let device = WgpuDevice::DefaultDevice;
    let mut model = Stack::<B>::new(layers, norms, &device);
    let mut optim = AdamWConfig::new().init::<B, Stack<B>>();
    let mut scaler = GradScaler::new(LossScaleConfig::dynamic()).unwrap();
    let mut last = None;
    for _ in 0..2 {
        let x = Tensor::<B, 2>::random([ROWS, WIDTH], Distribution::Default, &device);
        let before = (settled(log).len(), launches());
        Counters::reset();
        let loss = model.forward(x).mean();
        let mut scaled = scaler.scale(loss).backward();
        let grads = scaler.unscale(&mut scaled, &model);
        let outcome;
        (model, outcome) = scaler.step(&mut optim, 1e-3, model, grads);
        assert!(outcome.is_applied());
        scaler.update().unwrap();
        let reads = Counters::get().reads;
        B::sync(&device).unwrap();
        let ours = launches() - before.1;
        let mut kernels = BTreeMap::new();
        for line in &settled(log)[before.0..] {
            *kernels.entry(line.clone()).or_default() += 1;
        }
        last = Some(Step {
            kernels,
            ours,
            reads,
        });
    }
    last.unwrap()
}

/// The lines of the log, once there have been no more for a while: it is written by a thread of its own.
fn settled(log: &Path) -> Vec<String> {
    let mut lines = Vec::new();
    loop {
        std::thread::sleep(Duration::from_millis(150));
        let text = std::fs::read_to_string(log).unwrap_or_default();
        let now: Vec<_> = text.lines().map(str::to_owned).collect();
        if now.len() == lines.len() {
            return now;
        }
        lines = now;
    }
}

#[test]
#[allow(clippy::print_stderr)]
fn of_a_training_step() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("launches");
    let config = serde_json::json!({
        "profiling": { "logger": { "level": "minimal", "file": log } }
    });
    CubeClRuntimeConfig::set(serde_json::from_value(config).unwrap());

    let Some(device) = device::device() else {
        return;
    };
    AmpConfig::f16().init(&device).unwrap();
    let client = WgpuRuntime::client(&device);

    let two = step::<Autodiff<Amp<Plain>>>(2, 0, &log);
    let six = step::<Autodiff<Amp<Plain>>>(6, 0, &log);

    // Weights are cast by no kernel: four more of them need no more casts.
    assert_eq!(two.count("Cast"), six.count("Cast"), "{:#?}", six.kernels);
    assert!(
        six.count("Cast") > 0,
        "the input is cast: {:#?}",
        six.kernels
    );
    // Each has three products, but for the input, which needs no gradient.
    assert_eq!(two.ours.fused_matmul + two.ours.plain_matmul, 3 * 2 - 1);
    assert_eq!(six.ours.fused_matmul + six.ours.plain_matmul, 3 * 6 - 1);
    assert_eq!(six.count("MatmulNaive"), 3 * 6 - 1);
    assert_eq!(six.ours.cast, 0);

    // All gradients of a step in as few launches as the device's bindings allow, and one read.
    let limit = gradients_at_once(&client, true).unwrap();
    let norms = 40;
    let many = step::<Autodiff<Amp<Plain>>>(3, norms, &log);
    let parameters: usize = 3 + 2 * norms;
    assert_eq!(many.ours.unscale as usize, parameters.div_ceil(limit));
    assert_eq!(many.count("UnscaleInPlace"), parameters.div_ceil(limit));
    assert_eq!(many.ours.check, 0);
    assert_eq!([two.reads, six.reads, many.reads], [1; 3]);
    // A norm is one launch forward, and three backward.
    assert_eq!(many.ours.layer_norm as usize, 4 * norms);

    // With fusion the same kernels, and fewer beside them.
    let fused = step::<Autodiff<Amp<Fused>>>(3, norms, &log);
    assert_eq!(fused.ours, many.ours);
    assert_eq!(fused.reads, 1);
    let [with, without] = [&fused, &many].map(Step::total);
    eprintln!(
        "{without} launches without fusion, {with} with: {:#?}",
        fused.kernels
    );
    assert!(
        with < without,
        "{with} launches with fusion, {without} without"
    );
}
