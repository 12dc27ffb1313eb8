//! What the test binaries share. Burn's random generator is one for the whole process, so tests that
//! run side by side take their numbers from here.
#![allow(dead_code)] // Each test binary uses a part of it.

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::tensor::backend::Backend;
use burn::tensor::{DType, Shape, Tensor, TensorData};

/// splitmix64, as the recorded PyTorch data uses it.
#[derive(Debug, Clone)]
pub struct SplitMix64(u64);

impl SplitMix64 {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Uniform in [0, 1), with 53 bits.
    pub fn next_f64(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Standard normal, by Box and Muller.
    pub fn next_normal(&mut self) -> f64 {
        let radius = (-2.0 * (1.0 - self.next_f64()).ln()).sqrt();
        radius * (std::f64::consts::TAU * self.next_f64()).cos()
    }
}

/// Normally distributed f32 values.
pub fn normal<B: Backend, const D: usize>(
    shape: [usize; D],
    seed: u64,
    device: &B::Device,
) -> Tensor<B, D> {
    let mut rng = SplitMix64::new(seed);
    let count = shape.iter().product();
    let values: Vec<f32> = (0..count).map(|_| rng.next_normal() as f32).collect();
    Tensor::from_data(TensorData::new(values, shape), device)
}

/// Replaces every float parameter by normally distributed values; a vector, as the scale of a norm,
/// is drawn around its old value.
pub fn randomize<B: Backend, M: Module<B>>(module: M, seed: u64) -> M {
    struct Randomize(SplitMix64);

    impl<B: Backend> ModuleMapper<B> for Randomize {
        fn map_float<const D: usize>(&mut self, param: Param<Tensor<B, D>>) -> Param<Tensor<B, D>> {
            let (id, old, mapper) = param.consume();
            let dims = old.dims();
            let fan_in = if D > 1 {
                dims[..D - 1].iter().product()
            } else {
                100
            };
            let std = 1.0 / (fan_in as f64).sqrt();
            let count = dims.iter().product();
            let values: Vec<f32> = (0..count)
                .map(|_| (std * self.0.next_normal()) as f32)
                .collect();
            let device = old.device();
            let noise = Tensor::from_data(TensorData::new(values, dims), &device);
            // The old values are random but for vectors.
            let new = if D > 1 {
                noise
            } else {
                constant_of(&old) + noise
            };
            Param::from_mapped_value(id, new.require_grad(), mapper)
        }
    }

    /// One for the scale of a norm, zero for biases.
    fn constant_of<B: Backend, const D: usize>(old: &Tensor<B, D>) -> Tensor<B, D> {
        let ones = old.clone().detach().equal_elem(1.0);
        ones.float()
    }

    module.map(&mut Randomize(SplitMix64::new(seed)))
}

/// The bits of every parameter, in the module's order.
pub fn parameter_bits<B: Backend, M: Module<B>>(module: &M) -> Vec<Vec<u32>> {
    struct Bits(Vec<Vec<u32>>);

    impl<B: Backend> ModuleVisitor<B> for Bits {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
            let tensor = param.val();
            assert_eq!(tensor.dtype(), DType::F32);
            let values = tensor.into_data().to_vec::<f32>().unwrap();
            self.0.push(values.into_iter().map(f32::to_bits).collect());
        }
    }

    let mut bits = Bits(Vec::new());
    module.visit(&mut bits);
    bits.0
}

/// The values of a tensor as f64, whatever its type.
pub fn values<B: Backend, const D: usize>(tensor: Tensor<B, D>) -> Vec<f64> {
    tensor.into_data().iter::<f64>().collect()
}

/// A tensor with the given values, rounded to a type.
pub fn tensor<B: Backend, const D: usize>(
    values: &[f64],
    shape: [usize; D],
    dtype: DType,
    device: &B::Device,
) -> Tensor<B, D> {
    let data = TensorData::new(values.to_vec(), Shape::from(shape)).convert_dtype(dtype);
    Tensor::from_data(data, (device, dtype))
}
