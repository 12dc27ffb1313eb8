use burn::backend::Vulkan;
use burn::backend::wgpu::WgpuDevice;
use burn::tensor::backend::Backend;
use burn::tensor::ops::FloatTensor;
use burn::tensor::{FloatDType, TensorData};

/// Vulkan with Burn's fusion.
pub type Fused = Vulkan;

/// Vulkan without Burn's fusion.
pub type Plain = burn_cubecl::CubeBackend<cubecl::wgpu::WgpuRuntime, f32, i32, u8>;

/// The Vulkan device, or a message and nothing.
#[allow(clippy::print_stderr)]
pub fn device() -> Option<WgpuDevice> {
    let device = WgpuDevice::DefaultDevice;
    let found = std::panic::catch_unwind(|| Fused::sync(&WgpuDevice::DefaultDevice));
    if found.is_ok() {
        return Some(device);
    }
    assert!(
        std::env::var_os("BURN_AMP_REQUIRE_VULKAN").is_none(),
        "there has to be a Vulkan device: install mesa-vulkan-drivers"
    );
    eprintln!("skipped: no Vulkan device; mesa-vulkan-drivers provides one on the CPU");
    None
}

pub fn tensor<B: Backend>(
    values: &[f32],
    shape: &[usize],
    dtype: FloatDType,
    device: &B::Device,
) -> FloatTensor<B> {
    let data = TensorData::new(values.to_vec(), shape.to_vec());
    B::float_cast(B::float_from_data(data, device), dtype)
}

pub fn values<B: Backend>(tensor: FloatTensor<B>) -> Vec<f32> {
    let data = burn::tensor::read_sync(B::float_into_data(tensor)).expect("the device is there");
    data.iter::<f32>().collect()
}

/// Uniform in [-1, 1), from a linear congruential generator.
pub fn random(seed: u64, len: usize) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..len)
        .map(|_| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
        })
        .collect()
}
