use burn::module::{AutodiffModule, Module, ModuleVisitor, Param};
use burn::optim::{GradientsParams, LearningRate, Optimizer};
use burn::tensor::Tensor;
use burn::tensor::backend::{AutodiffBackend, Backend};

/// Tells how many bytes are in use: the heap, or a device.
pub trait MemorySource {
    /// The bytes in use now.
    fn in_use(&self) -> u64;

    /// The most bytes in use at once since [`reset_peak`](MemorySource::reset_peak).
    fn peak(&self) -> u64;

    /// Starts a new peak, at what is in use now.
    fn reset_peak(&self);
}

impl<S: MemorySource> MemorySource for &S {
    fn in_use(&self) -> u64 {
        (*self).in_use()
    }

    fn peak(&self) -> u64 {
        (*self).peak()
    }

    fn reset_peak(&self) {
        (*self).reset_peak();
    }
}

/// Measures what training keeps in memory.
///
/// A source counts for the whole process: other threads that allocate meanwhile are counted too.
///
/// # Example
///
/// ```
/// use burn::backend::Flex;
/// use burn::tensor::{Distribution, Tensor};
/// use burn_amp::memory::{HeapMeter, MemoryMeter};
/// use burn_amp::{Amp, AmpConfig, Autodiff, autocast};
///
/// #[global_allocator]
/// static HEAP: HeapMeter = HeapMeter::system();
///
/// fn main() -> Result<(), burn_amp::AmpError> {
///     type B = Autodiff<Amp<Flex>>;
///     let x = Tensor::<B, 2>::random([256, 256], Distribution::Default, &Default::default());
///     let x = x.require_grad();
///     let meter = MemoryMeter::new(&HEAP);
///     let pass = autocast(&AmpConfig::bf16(), || {
///         meter.pass(|| (x.clone() * 0.1).exp().sum(), |loss| loss.backward()).1
///     })?;
///     // Without a half operand there is nothing to save: exp keeps the f32 values it was given.
///     assert!(pass.kept >= 4 * 256 * 256 && pass.peak >= pass.kept);
///     Ok(())
/// }
/// ```
#[derive(Debug, Clone, Copy)]
pub struct MemoryMeter<S> {
    source: S,
}

/// The bytes that one forward and backward pass needed, over those in use before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PassMemory {
    /// In use between the end of forward and the start of backward: what the graph keeps, and the loss.
    pub kept: u64,
    /// The most in use at once.
    pub peak: u64,
}

/// The bytes that one training step needed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StepMemory {
    /// Of the module's float parameters.
    pub parameters: u64,
    /// Of the gradients of its parameters.
    pub gradients: u64,
    /// What the step left in use. After the first one, the optimizer's state; later zero.
    pub state: u64,
    /// Of forward and backward.
    pub pass: PassMemory,
}

impl StepMemory {
    /// Parameters, gradients and state, which do not depend on the batch.
    pub fn fixed(&self) -> u64 {
        self.parameters + self.gradients + self.state
    }
}

impl<S: MemorySource> MemoryMeter<S> {
    /// A meter that reads `source`: a [`HeapMeter`](super::HeapMeter), or a device's memory.
    pub const fn new(source: S) -> Self {
        Self { source }
    }

    /// What it reads.
    pub fn source(&self) -> &S {
        &self.source
    }

    /// Runs `f`, and tells the most bytes that were in use at once over those in use before.
    pub fn peak<R>(&self, f: impl FnOnce() -> R) -> (R, u64) {
        let before = self.source.in_use();
        self.source.reset_peak();
        let result = f();
        (result, self.source.peak().saturating_sub(before))
    }

    /// Runs a forward and a backward pass. `forward` returns what `backward` needs, and should drop
    /// everything else.
    pub fn pass<L, G>(
        &self,
        forward: impl FnOnce() -> L,
        backward: impl FnOnce(L) -> G,
    ) -> (G, PassMemory) {
        let before = self.source.in_use();
        self.source.reset_peak();
        let loss = forward();
        let kept = self.source.in_use().saturating_sub(before);
        let gradients = backward(loss);
        let peak = self.source.peak().saturating_sub(before);
        (gradients, PassMemory { kept, peak })
    }

    /// Runs a training step: forward, backward, update.
    ///
    /// `loss` is a forward pass that returns the loss.
    pub fn step<B, M, O>(
        &self,
        module: M,
        optim: &mut O,
        learning_rate: LearningRate,
        loss: impl FnOnce(&M) -> Tensor<B, 1>,
    ) -> (M, StepMemory)
    where
        B: AutodiffBackend,
        M: AutodiffModule<B>,
        O: Optimizer<M, B>,
    {
        let before = self.source.in_use();
        let parameters = parameter_bytes::<B, M>(&module);
        let (grads, pass) = self.pass(|| loss(&module), |loss| loss.backward());
        let grads = GradientsParams::from_grads(grads, &module);
        let gradients = gradient_bytes::<B, M>(&module, &grads);
        let module = optim.step(learning_rate, module, grads);
        let state = self.source.in_use().saturating_sub(before);
        let memory = StepMemory {
            parameters,
            gradients,
            state,
            pass,
        };
        (module, memory)
    }
}

/// The bytes of a module's float parameters, each in its type.
pub fn parameter_bytes<B: Backend, M: Module<B>>(module: &M) -> u64 {
    struct Parameters(u64);

    impl<B: Backend> ModuleVisitor<B> for Parameters {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
            self.0 += tensor_bytes(&param.val());
        }
    }

    let mut parameters = Parameters(0);
    module.visit(&mut parameters);
    parameters.0
}

/// The bytes of the gradients of a module's parameters.
pub fn gradient_bytes<B: AutodiffBackend, M: AutodiffModule<B>>(
    module: &M,
    grads: &GradientsParams,
) -> u64 {
    struct Gradients<'a> {
        grads: &'a GradientsParams,
        bytes: u64,
    }

    impl<B: AutodiffBackend> ModuleVisitor<B> for Gradients<'_> {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
            let grad = self.grads.get::<B::InnerBackend, D>(param.id);
            self.bytes += grad.map_or(0, |grad| tensor_bytes(&grad));
        }
    }

    let mut gradients = Gradients { grads, bytes: 0 };
    module.visit(&mut gradients);
    gradients.bytes
}

fn tensor_bytes<B: Backend, const D: usize>(tensor: &Tensor<B, D>) -> u64 {
    (tensor.shape().num_elements() * tensor.dtype().size()) as u64
}
