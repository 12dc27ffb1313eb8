//! What CubeCL's CUDA runtime says of a device, without the device.

use cubecl::features::{AtomicUsage, Plane, Tma, TypeUsage};
use cubecl::ir::{
    BarrierLevel, DeviceProperties, ElemType, FloatKind, HardwareProperties,
    MemoryDeviceProperties, OpaqueType, SemanticType, StorageType, Type, VectorSize,
};
use cubecl::profile::TimingMethod;
use cubecl_cpp::DialectWmmaCompiler;
use cubecl_cpp::cuda::CudaDialect;
use cubecl_cpp::cuda::arch::CudaArchitecture;
use cubecl_cpp::cuda::mma::CudaWmmaCompiler;
use cubecl_cpp::shared::{
    CompilationOptions, CppSupportedFeatures, register_mma_features, register_scaled_mma_features,
    register_supported_types, register_wmma_features,
};

/// How rows of a pitched allocation are aligned, in bytes.
pub const ALIGNMENT: u64 = 512;

const WARP: u32 = 32;

/// The most buffers of a kernel, as CubeCL limits them.
const MAX_BINDINGS: u32 = 1024;

/// A generation of data centre GPUs: what kernels can depend on beside its version.
struct Generation {
    version: u32,
    multiprocessors: u32,
    /// The most that a block can opt in to, in bytes.
    shared_memory: usize,
    memory: u64,
}

const GENERATIONS: [Generation; 2] = [
    // A100.
    Generation {
        version: 80,
        multiprocessors: 108,
        shared_memory: 163 << 10,
        memory: 80 << 30,
    },
    // H100 and H200.
    Generation {
        version: 90,
        multiprocessors: 132,
        shared_memory: 227 << 10,
        memory: 80 << 30,
    },
];

/// Whether the properties of a version are known.
pub fn is_known(version: u32) -> bool {
    generation(version).is_some()
}

fn generation(version: u32) -> Option<&'static Generation> {
    GENERATIONS.iter().find(|known| known.version == version)
}

/// What the compiler may use.
pub fn compilation_options(version: u32) -> CompilationOptions {
    CompilationOptions {
        warp_size: WARP,
        supports_features: CppSupportedFeatures {
            grid_constants: version >= 70,
            clusters: version >= 90,
            fast_math: true,
            // From CUDA 12.8 on.
            fast_tanh: version >= 75,
            elect_sync: version >= 90,
        },
    }
}

/// The properties of a device with compute capability 8.0 (80) or 9.0 (90).
///
/// # Panics
///
/// For any other version.
pub fn device_properties(version: u32) -> DeviceProperties {
    let Some(generation) = generation(version) else {
        panic!("the properties of sm_{version} are not known");
    };
    let hardware = HardwareProperties {
        load_width: 128,
        plane_size_min: WARP,
        plane_size_max: WARP,
        max_bindings: MAX_BINDINGS,
        max_shared_memory_size: generation.shared_memory,
        max_cube_count: (i32::MAX as u32, u16::MAX.into(), u16::MAX.into()),
        max_units_per_cube: 1024,
        max_cube_dim: (1024, 1024, 64),
        num_streaming_multiprocessors: Some(generation.multiprocessors),
        num_tensor_cores: Some(4),
        min_tensor_cores_dim: Some(8),
        num_cpu_cores: None,
        max_vector_size: VectorSize::MAX,
    };
    let memory = MemoryDeviceProperties {
        max_page_size: generation.memory / 4,
        alignment: ALIGNMENT,
    };
    let mut properties =
        DeviceProperties::new(Default::default(), memory, hardware, TimingMethod::System);
    register_types(&mut properties, version);
    register_features(&mut properties, version);
    properties
}

fn register_types(properties: &mut DeviceProperties, version: u32) {
    let atomic = |kind: FloatKind| Type::new(StorageType::Atomic(ElemType::Float(kind)));
    let add = AtomicUsage::Add | AtomicUsage::LoadStore;

    register_supported_types(properties);
    properties.register_type_usage(ElemType::Float(FloatKind::TF32), TypeUsage::Conversion);
    for ty in [
        atomic(FloatKind::F64),
        atomic(FloatKind::F16),
        atomic(FloatKind::F16).with_vector_size(2),
    ] {
        properties.register_atomic_type_usage(ty, add);
    }
    for level in [BarrierLevel::Unit, BarrierLevel::Cube] {
        properties.register_type_usage(OpaqueType::Barrier(level), TypeUsage::Buffer);
    }
    properties.register_semantic_type(SemanticType::Pipeline);
    if version >= 90 {
        for kind in [FloatKind::E4M3, FloatKind::E5M2] {
            properties.register_type_usage(
                ElemType::Float(kind),
                TypeUsage::Conversion | TypeUsage::Buffer,
            );
        }
        for lanes in [2, 4] {
            properties
                .register_atomic_type_usage(atomic(FloatKind::F32).with_vector_size(lanes), add);
        }
        properties.register_semantic_type(SemanticType::TensorMap);
    }
}

fn register_features(properties: &mut DeviceProperties, version: u32) {
    let features = &mut properties.features;
    features.plane |= Plane::Sync | Plane::Ops | Plane::NonUniformControlFlow;
    features.copy_async = true;
    features.memory_reinterpret = true;
    features.alignment = true;
    for kind in [FloatKind::F16, FloatKind::BF16] {
        let half: StorageType = ElemType::Float(kind).into();
        features.matmul.ldmatrix.insert(half);
        if version >= 90 {
            features.matmul.stmatrix.insert(half);
        }
    }
    if version >= 90 {
        features.tma.insert(Tma::Base);
        features.cube_cluster = true;
    }

    type Wmma = CudaWmmaCompiler;
    type Of = CudaDialect<Wmma>;
    let architecture = CudaArchitecture { version };
    register_wmma_features(
        <Wmma as DialectWmmaCompiler<Of>>::supported_wmma_combinations(&architecture),
        properties,
    );
    register_mma_features(
        <Wmma as DialectWmmaCompiler<Of>>::supported_mma_combinations(&architecture),
        properties,
    );
    register_scaled_mma_features(
        <Wmma as DialectWmmaCompiler<Of>>::supported_scaled_mma_combinations(&architecture),
        properties,
    );
}
