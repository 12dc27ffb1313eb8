//! Matrix products in f16 or bf16 with sums in f32, of operands in any type.
//!
//! The usual way casts f32 weights first: a kernel of its own, and a second copy of the weights. Here
//! the operands are read as they are and cast on the way to the multipliers, the bias is added to the
//! sum, and the result is rounded once. Where a cast beforehand is faster after all, as for products so
//! large that every value is loaded many times, [`Strategy::Auto`] finds out, if the `autotune` feature
//! is on.

mod epilogue;
mod naive;
mod strategy;
mod tiled;
#[cfg(feature = "autotune")]
mod tune;

pub use strategy::{Routine, Strategy, Tile};

use cubecl::prelude::*;
use cubecl::std::tensor::{MatrixBatchLayout, into_contiguous, matrix_batch_layout};

use crate::cast::{cast, is_dense};
use crate::counters::{FUSED_MATMUL, PLAIN_MATMUL};
use crate::device::require;
use crate::{DeviceTensor, FloatType, KernelError};

/// A product: `lhs · rhs + bias`.
#[derive(Debug, Clone)]
pub struct Product {
    /// `[.., m, k]`, with any strides.
    pub lhs: DeviceTensor,
    /// `[.., k, n]`, with any strides.
    pub rhs: DeviceTensor,
    /// `[n]`, f32.
    pub bias: Option<DeviceTensor>,
    /// The type that is multiplied: f16 or bf16.
    pub compute: FloatType,
    /// The type of the result.
    pub out: FloatType,
}

impl Product {
    /// The same product of operands that were cast to the compute type before, where they are not in
    /// it.
    fn of_cast_operands<R: Runtime>(&self, client: &ComputeClient<R>) -> Result<Self, KernelError> {
        let operand = |tensor: &DeviceTensor| {
            if tensor.dtype == self.compute {
                return Ok(tensor.clone());
            }
            let dense = if is_dense(tensor) {
                tensor.clone()
            } else {
                contiguous(client, tensor)
            };
            cast(client, &dense, self.compute, false)
        };
        Ok(Self {
            lhs: operand(&self.lhs)?,
            rhs: operand(&self.rhs)?,
            ..self.clone()
        })
    }

    fn is_in_compute_type(&self) -> bool {
        self.lhs.dtype == self.compute && self.rhs.dtype == self.compute
    }

    /// The number of multiplications.
    #[cfg(not(feature = "autotune"))]
    fn work(&self, output: &DeviceTensor) -> usize {
        output.len() * self.lhs.shape[self.lhs.shape.len() - 1]
    }
}

/// Multiplies.
///
/// # Shapes
///
/// - lhs: `[.., m, k]`, rhs: `[.., k, n]`, with leading dimensions that broadcast; bias: `[n]`
/// - returns: `[.., m, n]`
///
/// # Errors
///
/// Shapes that do not fit, a type that the device lacks, a compute type that is not half, a bias that
/// is not f32, or a strategy that cannot run this product; [`Strategy::Auto`] always finds one.
pub fn matmul<R: Runtime>(
    client: &ComputeClient<R>,
    product: &Product,
    strategy: Strategy,
) -> Result<DeviceTensor, KernelError> {
    let Product {
        lhs,
        rhs,
        bias,
        compute,
        out,
    } = product;
    require(client, &[lhs.dtype, rhs.dtype, *compute, *out])?;
    if *compute == FloatType::F32 {
        return Err(KernelError::Type {
            what: "the compute type of a product",
            expected: "F16 or BF16",
            actual: *compute,
        });
    }
    let shape = output_shape(lhs, rhs)?;
    let columns = shape[shape.len() - 1];
    if let Some(bias) = bias {
        bias.require_f32("the bias of a product")?;
        bias.require_shape("the bias of a product", &[columns])?;
    }
    let output = DeviceTensor::empty(client, shape, *out);
    if output.is_empty() {
        return Ok(output);
    }
    let product = Product {
        lhs: with_rank(lhs, output.shape.len()),
        rhs: with_rank(rhs, output.shape.len()),
        ..product.clone()
    };
    launch(client, &product, &output, strategy)?;
    Ok(output)
}

fn launch<R: Runtime>(
    client: &ComputeClient<R>,
    product: &Product,
    output: &DeviceTensor,
    strategy: Strategy,
) -> Result<(), KernelError> {
    let has_no_sum = product.lhs.shape[product.lhs.shape.len() - 1] == 0;
    match strategy {
        _ if has_no_sum => with_routine(client, product, output, Strategy::Naive),
        Strategy::Auto => auto(client, product, output),
        _ => with_routine(client, product, output, strategy),
    }
}

fn with_routine<R: Runtime>(
    client: &ComputeClient<R>,
    product: &Product,
    output: &DeviceTensor,
    strategy: Strategy,
) -> Result<(), KernelError> {
    match strategy {
        Strategy::Fused(routine) => {
            tiled::launch(client, product, output, routine)?;
            count(product);
        }
        Strategy::CastThen(routine) => {
            let product = product.of_cast_operands(client)?;
            tiled::launch(client, &product, output, routine)?;
            PLAIN_MATMUL.add_one();
        }
        Strategy::Naive | Strategy::Auto => {
            naive::launch(client, product, output);
            count(product);
        }
    }
    Ok(())
}

fn count(product: &Product) {
    if product.is_in_compute_type() {
        PLAIN_MATMUL.add_one();
    } else {
        FUSED_MATMUL.add_one();
    }
}

fn auto<R: Runtime>(
    client: &ComputeClient<R>,
    product: &Product,
    output: &DeviceTensor,
) -> Result<(), KernelError> {
    if let Some(strategy) = strategy::from_environment() {
        return with_routine(client, product, output, strategy);
    }
    #[cfg(feature = "autotune")]
    {
        tune::launch(client, product, output);
        Ok(())
    }
    #[cfg(not(feature = "autotune"))]
    {
        strategy::by_rule(client, product, output)
            .into_iter()
            .find_map(|strategy| with_routine(client, product, output, strategy).ok())
            .map_or_else(
                || with_routine(client, product, output, Strategy::Naive),
                Ok,
            )
    }
}

fn output_shape(lhs: &DeviceTensor, rhs: &DeviceTensor) -> Result<Vec<usize>, KernelError> {
    let [left, right] = [lhs, rhs].map(|operand| operand.shape.to_vec());
    let wrong = |expected: &str| KernelError::Shape {
        what: "the operands of a product",
        expected: expected.to_owned(),
        actual: format!("{left:?} and {right:?}"),
    };
    if left.len() < 2 || right.len() < 2 {
        return Err(wrong("at least two dimensions"));
    }
    let [m, k] = [left[left.len() - 2], left[left.len() - 1]];
    if right[right.len() - 2] != k {
        return Err(wrong("[.., m, k] and [.., k, n]"));
    }
    let rank = left.len().max(right.len());
    let mut shape = Vec::with_capacity(rank);
    for dim in 0..rank - 2 {
        let size = |shape: &[usize]| match (dim + shape.len()).checked_sub(rank) {
            Some(dim) => shape[dim],
            None => 1,
        };
        let sizes = [size(&left), size(&right)];
        shape.push(match sizes {
            [1, size] | [size, 1] => size,
            [one, other] if one == other => one,
            _ => return Err(wrong("leading dimensions that broadcast")),
        });
    }
    shape.extend([m, right[right.len() - 1]]);
    Ok(shape)
}

/// The operand with leading dimensions of 1, and no stride where it is broadcast.
fn with_rank(tensor: &DeviceTensor, rank: usize) -> DeviceTensor {
    let missing = rank - tensor.shape.len();
    let mut shape = vec![1; missing];
    let mut strides = vec![0; missing];
    for dim in 0..tensor.shape.len() {
        let size = tensor.shape[dim];
        let is_matrix = dim + 2 >= tensor.shape.len();
        shape.push(size);
        strides.push(if size == 1 && !is_matrix {
            0
        } else {
            tensor.strides[dim]
        });
    }
    DeviceTensor {
        shape: shape.into(),
        strides: strides.into(),
        ..tensor.clone()
    }
}

/// The operand in an order that tiles can be loaded in: rows or columns in a row.
fn loadable<R: Runtime>(client: &ComputeClient<R>, tensor: &DeviceTensor) -> DeviceTensor {
    match matrix_batch_layout(&tensor.strides, None) {
        MatrixBatchLayout::HighlyPermuted => contiguous(client, tensor),
        _ => tensor.clone(),
    }
}

fn contiguous<R: Runtime>(client: &ComputeClient<R>, tensor: &DeviceTensor) -> DeviceTensor {
    let copy = into_contiguous(client, tensor.binding(), tensor.dtype.into());
    DeviceTensor::contiguous(copy.handle, tensor.shape.clone(), tensor.dtype)
}
