use burn::module::AutodiffModule;
use burn::optim::{GradientsAccumulator, GradientsParams};
use burn::tensor::backend::AutodiffBackend;
use serde::{Deserialize, Serialize};

use super::NonFiniteGradient;
use super::change::{Change, change};
use super::check::Check;
use super::devices::{devices_of, report, scalers_of, trained_on};
use super::statistics::Statistics;
use super::widen::in_f32;
use crate::full_precision;
use crate::loss_scale::{OptimizerId, ScaleUpdate};

/// What becomes of a micro-batch whose gradients are not finite.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BadMicroBatch {
    /// It is accumulated like the others, so that the optimizer skips the whole window. Nothing is read.
    #[default]
    SkipWindow,
    /// It is left out, at one read by the host a micro-batch. Running statistics that its forward pass left
    /// not finite are taken back.
    Drop,
}

/// Accumulates the gradients of several micro-batches into their mean, in f32, and can leave out those
/// that are not finite.
///
/// The mean is the sum divided by the number of micro-batches that were kept, so losses are not to be
/// divided by the caller. One that gives a parameter no gradient counts as a gradient of zero. Burn's
/// `GradientsAccumulator` gives the sum instead.
///
/// # The loss scale
///
/// With [`BadMicroBatch::Drop`] each micro-batch that is left out is reported to the loss scale as an
/// overflow, so the next one is differentiated with a lower scale; gradients are true ones, and those of
/// different scales can be added. Between two backward passes there is one verdict: if the last
/// micro-batch of a window is left out, the step on the others is applied, but does not count towards the
/// growth of the scale. A window of which nothing is left has no gradients, and the optimizer's step has
/// [nothing to do](crate::StepOutcome::NothingToDo).
///
/// The scale is that which [`backward`](crate::Autodiff) multiplies with, not that of a
/// [`GradScaler`](crate::GradScaler).
///
/// # Example
///
/// ```
/// use burn::backend::Flex;
/// use burn::nn::{Linear, LinearConfig};
/// use burn::optim::{GradientsParams, Optimizer, SgdConfig};
/// use burn::tensor::Tensor;
/// use burn_amp::{Amp, AmpGradientsAccumulator, AmpOptimizerConfig, Autodiff, BadMicroBatch};
///
/// type B = Autodiff<Amp<Flex>>;
/// let device = Default::default();
/// let mut model: Linear<B> = LinearConfig::new(2, 1).with_bias(false).init(&device);
/// let mut optim = AmpOptimizerConfig::new().init(SgdConfig::new().init::<B, Linear<B>>());
/// let mut accumulator = AmpGradientsAccumulator::new(BadMicroBatch::Drop);
///
/// for input in [1.0, f32::NAN, 3.0] {
///     let x = Tensor::<B, 2>::full([1, 2], input, &device);
///     let loss = model.forward(x).sum();
///     let grads = GradientsParams::from_grads(loss.backward(), &model);
///     accumulator.accumulate(&model, grads);
/// }
/// assert_eq!((accumulator.kept(), accumulator.dropped()), (2, 1));
/// let grads = accumulator.grads(&model); // (1 + 3) / 2
/// model = optim.step(0.1, model, grads);
/// # let _ = model;
/// ```
#[derive(Debug)]
pub struct AmpGradientsAccumulator<M> {
    bad: BadMicroBatch,
    id: OptimizerId,
    sum: Sum<M>,
    kept: usize,
    dropped: usize,
    statistics: Statistics,
    update: Option<ScaleUpdate>,
}

struct Sum<M>(GradientsAccumulator<M>);

impl<M> std::fmt::Debug for Sum<M> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sum").finish_non_exhaustive()
    }
}

impl<M> AmpGradientsAccumulator<M> {
    /// Begins a window.
    pub fn new(bad: BadMicroBatch) -> Self {
        Self {
            bad,
            id: OptimizerId::new(),
            sum: Sum(GradientsAccumulator::new()),
            kept: 0,
            dropped: 0,
            statistics: Statistics::default(),
            update: None,
        }
    }

    /// The micro-batches of this window that were accumulated: what the sum is divided by.
    pub fn kept(&self) -> usize {
        self.kept
    }

    /// The micro-batches of this window that were left out.
    pub fn dropped(&self) -> usize {
        self.dropped
    }

    /// Adds the gradients of a micro-batch, or leaves them out, and returns those for which it did: none
    /// if the micro-batch was kept.
    pub fn accumulate<B>(&mut self, module: &M, grads: GradientsParams) -> Vec<NonFiniteGradient>
    where
        B: AutodiffBackend,
        M: AutodiffModule<B>,
    {
        let non_finite = match self.bad {
            BadMicroBatch::SkipWindow => Vec::new(),
            BadMicroBatch::Drop => Check::of::<B, M>(module, &[&grads]).read(),
        };
        if self.bad == BadMicroBatch::Drop {
            self.statistics
                .update::<B, M>(module, !non_finite.is_empty());
        }
        if non_finite.is_empty() {
            full_precision(|| {
                let grads = in_f32::<B, M>(grads, module);
                self.sum.0.accumulate(module, grads);
            });
            self.kept += 1;
        } else {
            let devices = trained_on::<B, M>(module);
            let scalers = scalers_of(&devices_of::<B, M>(module, &devices));
            self.update = report(&scalers, self.id, true, self.update);
            self.dropped += 1;
        }
        non_finite
    }

    /// Returns the mean over the micro-batches that were kept, without gradients if there were none, and
    /// begins the next window.
    pub fn grads<B>(&mut self, module: &M) -> GradientsParams
    where
        B: AutodiffBackend,
        M: AutodiffModule<B>,
    {
        let mut grads = self.sum.0.grads();
        let count = std::mem::take(&mut self.kept);
        self.dropped = 0;
        if count > 1 {
            full_precision(|| change::<B, M>(&mut grads, module, &Change::Divide(count)));
        }
        grads
    }
}
