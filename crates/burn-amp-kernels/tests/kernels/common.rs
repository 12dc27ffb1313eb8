use std::sync::OnceLock;

use burn_amp_kernels::{DeviceTensor, FloatType};
use cubecl::prelude::*;
use cubecl::wgpu::{WgpuDevice, WgpuRuntime};
use half::f16;
use rand::rngs::ChaCha8Rng;
use rand::{RngExt, SeedableRng};

pub type Client = ComputeClient<WgpuRuntime>;

/// The Vulkan device, or a message and nothing.
#[allow(clippy::print_stderr)]
pub fn client() -> Option<Client> {
    static CLIENT: OnceLock<Option<Client>> = OnceLock::new();
    CLIENT
        .get_or_init(|| {
            let found =
                std::panic::catch_unwind(|| WgpuRuntime::client(&WgpuDevice::DefaultDevice));
            if let Ok(client) = found {
                return Some(client);
            }
            assert!(
                std::env::var_os("BURN_AMP_REQUIRE_VULKAN").is_none(),
                "there has to be a Vulkan device: install mesa-vulkan-drivers"
            );
            eprintln!("skipped: no Vulkan device; mesa-vulkan-drivers provides one on the CPU");
            None
        })
        .clone()
}

/// Uniform in [-1, 1).
pub fn random(seed: u64, len: usize) -> Vec<f32> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    (0..len).map(|_| rng.random_range(-1.0f32..1.0)).collect()
}

pub fn bytes_of(values: &[f32], dtype: FloatType) -> Vec<u8> {
    match dtype {
        FloatType::F32 => f32::as_bytes(values).to_vec(),
        FloatType::F16 => values
            .iter()
            .flat_map(|value| f16::from_f32(*value).to_le_bytes())
            .collect(),
        FloatType::BF16 => unreachable!("lavapipe has no bf16"),
    }
}

pub fn upload(client: &Client, values: &[f32], shape: &[usize], dtype: FloatType) -> DeviceTensor {
    assert_eq!(values.len(), shape.iter().product::<usize>());
    let mut bytes = bytes_of(values, dtype);
    // A buffer cannot be empty.
    bytes.resize(bytes.len().max(4).next_multiple_of(4), 0);
    DeviceTensor::contiguous(client.create_from_slice(&bytes), shape.to_vec(), dtype)
}

/// The matrix in the middle of a larger one that is filled with NaN.
pub fn upload_amid_nan(
    client: &Client,
    values: &[f32],
    shape: [usize; 2],
    dtype: FloatType,
) -> DeviceTensor {
    let [rows, columns] = shape;
    // The device's alignment, in values of the smallest type.
    let before = client.properties().memory.alignment as usize;
    let pitch = columns + 3;
    let mut larger = vec![f32::NAN; before + rows * pitch + 64];
    for row in 0..rows {
        let start = before + row * pitch;
        larger[start..start + columns].copy_from_slice(&values[row * columns..][..columns]);
    }
    let mut bytes = bytes_of(&larger, dtype);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    let handle = client
        .create_from_slice(&bytes)
        .offset_start((before * dtype.size()) as u64);
    let mut tensor = DeviceTensor::contiguous(handle, shape, dtype);
    tensor.strides = vec![pitch, 1].into();
    tensor
}

/// A tensor whose buffer goes on behind it, with NaN.
pub fn upload_before_nan(
    client: &Client,
    values: &[f32],
    shape: &[usize],
    dtype: FloatType,
) -> DeviceTensor {
    let mut longer = values.to_vec();
    longer.resize(values.len() + 4096, f32::NAN);
    let handle = client.create_from_slice(&bytes_of(&longer, dtype));
    DeviceTensor::contiguous(handle, shape.to_vec(), dtype)
}

pub fn download(client: &Client, tensor: &DeviceTensor) -> Vec<f32> {
    assert!(tensor.is_contiguous());
    let len = tensor.len();
    if len == 0 {
        return Vec::new();
    }
    let bytes = client.read_one_unchecked(tensor.handle.clone());
    match tensor.dtype {
        FloatType::F32 => f32::from_bytes(&bytes)[..len].to_vec(),
        FloatType::F16 => f16::from_bytes(&bytes)[..len]
            .iter()
            .map(|value| value.to_f32())
            .collect(),
        FloatType::BF16 => unreachable!("lavapipe has no bf16"),
    }
}

/// The nearest values of a type.
pub fn rounded(values: &[f32], dtype: FloatType) -> Vec<f32> {
    match dtype {
        FloatType::F32 => values.to_vec(),
        FloatType::F16 => values
            .iter()
            .map(|value| f16::from_f32(*value).to_f32())
            .collect(),
        FloatType::BF16 => unreachable!("lavapipe has no bf16"),
    }
}

/// Half a unit in the last place of values around 1.
pub fn precision(dtype: FloatType) -> f64 {
    match dtype {
        FloatType::F32 => 2f64.powi(-24),
        FloatType::F16 => 2f64.powi(-11),
        FloatType::BF16 => 2f64.powi(-8),
    }
}

#[track_caller]
pub fn assert_close(actual: &[f32], expected: &[f64], tolerance: f64) {
    assert_eq!(actual.len(), expected.len());
    for (index, (actual, expected)) in actual.iter().zip(expected).enumerate() {
        let error = (f64::from(*actual) - expected).abs();
        assert!(
            error <= tolerance * expected.abs().max(1.0),
            "value {index}: {actual} for {expected}, off by {error:e}"
        );
    }
}

pub const HALF_AND_FULL: [FloatType; 2] = [FloatType::F32, FloatType::F16];
