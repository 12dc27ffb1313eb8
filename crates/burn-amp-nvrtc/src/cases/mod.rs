//! Every kernel of burn-amp-kernels, over the types, shapes and strategies that it is used with.

mod products;

use std::fmt;

use burn_amp_kernels::matmul::{Routine, Strategy, Tile};
use burn_amp_kernels::{DeviceTensor, FloatType, KernelError, cast, rows, unscale};
use cubecl::prelude::*;
use serde::Serialize;

use crate::runtime::{Failure, Kernel, NullCuda, NullDevice};
use FloatType::{BF16, F16, F32};

type Client = ComputeClient<NullCuda>;

/// What a case is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Operation {
    /// A product.
    Matmul,
    /// Gradients divided by the scale and checked.
    Unscale,
    /// Gradients checked.
    Check,
    /// A cast of a tensor.
    Cast,
    /// Layer norm, forward and backward.
    LayerNorm,
    /// Softmax and log-softmax, forward and backward.
    Softmax,
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Matmul => "matmul",
            Self::Unscale => "unscale",
            Self::Check => "check",
            Self::Cast => "cast",
            Self::LayerNorm => "layer_norm",
            Self::Softmax => "softmax",
        })
    }
}

/// One call of a public function.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Case {
    /// What is called.
    pub operation: Operation,
    /// The types of the operands and the result.
    pub types: String,
    /// What else the kernels depend on.
    pub detail: String,
    /// How a product is run.
    pub strategy: Option<Strategy>,
    /// The type that a product multiplies.
    pub compute: Option<FloatType>,
}

impl Case {
    /// The tensor-core instructions that the case asks for.
    pub fn tile(&self) -> Option<Tile> {
        let (Strategy::Fused(routine) | Strategy::CastThen(routine)) = self.strategy? else {
            return None;
        };
        match routine {
            Routine::Unit => None,
            Routine::Simple { tile, .. }
            | Routine::DoubleBuffered { tile, .. }
            | Routine::Ordered { tile, .. }
            | Routine::Tma { tile, .. }
            | Routine::SpecializedTma { tile } => Some(tile),
        }
    }

    /// How a product is run, or the empty string.
    pub fn strategy(&self) -> String {
        self.strategy
            .map_or(String::new(), |strategy| strategy.to_string())
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.operation, self.types)?;
        for more in [&self.strategy(), &self.detail] {
            if !more.is_empty() {
                write!(f, ", {more}")?;
            }
        }
        Ok(())
    }
}

/// What came of a case.
#[derive(Debug)]
pub struct Outcome {
    /// The case.
    pub case: Case,
    /// Ten times the compute capability.
    pub version: u32,
    /// Why nothing was launched.
    pub refused: Option<KernelError>,
    /// The kernels that no case before had launched.
    pub kernels: Vec<Result<Kernel, Failure>>,
}

/// Launches all cases on a device that is not there.
pub fn all(version: u32) -> Vec<Outcome> {
    let mut run = Run {
        client: NullCuda::client(&NullDevice { version }),
        version,
        outcomes: Vec::new(),
    };
    run.gradients();
    run.casts();
    run.layer_norms();
    run.softmaxes();
    run.products();
    run.outcomes
}

/// Types that occur together: one alone, or f32 beside a half type.
const PAIRS: [[FloatType; 2]; 7] = [
    [F32, F32],
    [F16, F16],
    [BF16, BF16],
    [F16, F32],
    [F32, F16],
    [BF16, F32],
    [F32, BF16],
];

/// The widths of a row that is loaded in vectors, and of one that is not.
const WIDTHS: [usize; 2] = [768, 765];

fn name(dtype: FloatType) -> &'static str {
    match dtype {
        F32 => "f32",
        F16 => "f16",
        BF16 => "bf16",
    }
}

struct Run {
    client: Client,
    version: u32,
    outcomes: Vec<Outcome>,
}

impl Run {
    fn case(&mut self, case: Case, launch: impl FnOnce(&Client) -> Result<(), KernelError>) {
        let refused = launch(&self.client).err();
        // Launches are queued; the queue is in order.
        let flushed = self.client.flush();
        let mut kernels = self.client.info().take();
        if let Err(error) = flushed {
            kernels.push(Err(Failure {
                kernel: case.to_string(),
                reason: error.to_string(),
            }));
        }
        self.outcomes.push(Outcome {
            case,
            version: self.version,
            refused,
            kernels,
        });
    }

    fn other(
        &mut self,
        operation: Operation,
        types: &[FloatType],
        detail: String,
        launch: impl FnOnce(&Client) -> Result<(), KernelError>,
    ) {
        let types: Vec<_> = types.iter().map(|dtype| name(*dtype)).collect();
        let case = Case {
            operation,
            types: types.join(" "),
            detail,
            strategy: None,
            compute: None,
        };
        self.case(case, launch);
    }

    fn gradients(&mut self) {
        // Vectors of four, and of one.
        for len in [4096, 4097] {
            for count in [1, 4, 16, 64] {
                for dtype in [F32, F16, BF16] {
                    let detail = format!("{count} of {len}");
                    self.other(Operation::Unscale, &[dtype], detail, |client| {
                        let mut grads = grads(client, count, len, dtype);
                        // What something else holds is not written in place.
                        let _held = grads.clone();
                        unscale::unscale_and_check(client, &mut grads, &client.empty(4)).map(drop)
                    });
                }
                let detail = format!("{count} of {len} in place");
                self.other(Operation::Unscale, &[F32], detail, |client| {
                    let mut grads = grads(client, count, len, F32);
                    unscale::unscale_and_check(client, &mut grads, &client.empty(4)).map(drop)
                });
            }
            for count in if len % 2 == 0 { vec![1, 16] } else { vec![1] } {
                for dtype in [F32, F16, BF16] {
                    let detail = format!("{count} of {len}");
                    self.other(Operation::Check, &[dtype], detail, |client| {
                        unscale::check(client, &grads(client, count, len, dtype)).map(drop)
                    });
                }
            }
        }
    }

    fn casts(&mut self) {
        for [from, to] in PAIRS.into_iter().chain([[F16, BF16], [BF16, F16]]) {
            for saturating in [false, true] {
                let detail = if saturating { "saturating" } else { "" };
                self.other(Operation::Cast, &[from, to], detail.to_owned(), |client| {
                    let tensor = DeviceTensor::empty(client, [64, 64], from);
                    cast(client, &tensor, to, saturating).map(drop)
                });
            }
        }
    }

    fn layer_norms(&mut self) {
        let operation = Operation::LayerNorm;
        for width in WIDTHS {
            for [x, other] in PAIRS {
                // An odd width changes the vectors, whatever the types are.
                if width != WIDTHS[0] && x != other {
                    continue;
                }
                let beta_is_optional = [x, other] == [F32, F32] && width == WIDTHS[0];
                for with_beta in [true, false] {
                    if !with_beta && !beta_is_optional {
                        continue;
                    }
                    let beta = if with_beta { "" } else { " without beta" };
                    let detail = format!("forward, {width} wide{beta}");
                    self.other(operation, &[x, other], detail, |client| {
                        let parameter = DeviceTensor::empty(client, [width], F32);
                        let beta = with_beta.then(|| parameter.clone());
                        let x = DeviceTensor::empty(client, [64, width], x);
                        rows::layer_norm_forward(client, &x, &parameter, beta.as_ref(), 1e-5, other)
                            .map(drop)
                    });
                }
                let detail = format!("backward, {width} wide");
                self.other(operation, &[x, other], detail, |client| {
                    let statistic = || DeviceTensor::empty(client, [64, 1], F32);
                    let moments = rows::Moments {
                        mean: statistic(),
                        inv_deviation: statistic(),
                    };
                    let gamma = DeviceTensor::empty(client, [width], F32);
                    let x = DeviceTensor::empty(client, [64, width], x);
                    let grad = DeviceTensor::empty(client, [64, width], other);
                    rows::layer_norm_backward(client, &x, &gamma, &moments, &grad).map(drop)
                });
            }
        }
    }

    fn softmaxes(&mut self) {
        let operation = Operation::Softmax;
        for width in WIDTHS {
            for [x, other] in PAIRS {
                if width != WIDTHS[0] && x != other {
                    continue;
                }
                let of = |client: &Client, dtype| DeviceTensor::empty(client, [64, width], dtype);
                let detail = |what: &str| format!("{what}, {width} wide");
                self.other(operation, &[x, other], detail("forward"), |client| {
                    rows::softmax_forward(client, &of(client, x), other).map(drop)
                });
                self.other(operation, &[x, other], detail("log forward"), |client| {
                    rows::log_softmax_forward(client, &of(client, x), other).map(drop)
                });
                self.other(operation, &[x, other], detail("log backward"), |client| {
                    let log_sum = DeviceTensor::empty(client, [64, 1], F32);
                    let [x, grad] = [x, other].map(|dtype| of(client, dtype));
                    rows::log_softmax_backward(client, &x, &log_sum, &grad).map(drop)
                });
                self.other(operation, &[x, other], detail("backward"), |client| {
                    let [output, grad] = [x, other].map(|dtype| of(client, dtype));
                    rows::softmax_backward(client, &output, &grad, other).map(drop)
                });
            }
        }
    }
}

fn grads(client: &Client, count: usize, len: usize, dtype: FloatType) -> Vec<DeviceTensor> {
    (0..count)
        .map(|_| DeviceTensor::empty(client, [len], dtype))
        .collect()
}
