//! A runtime of CubeCL that only compiles: a launch becomes CUDA source, and memory is never there.
//!
//! Any launch code runs unchanged against it. It has the properties of a CUDA device and the compiler of
//! CubeCL's CUDA runtime, so that the sources are those that a GPU would get.

use std::any::Any;
use std::collections::HashSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};

use cubecl::backtrace::BackTrace;
use cubecl::bytes::Bytes;
use cubecl::device::{Device, DeviceId, DeviceService, ServerUtilitiesHandle};
use cubecl::future::DynFut;
use cubecl::ir::{ContiguousElements, MatrixLayout, MmaProperties, TargetProperties};
use cubecl::prelude::*;
use cubecl::profile::ProfileDuration;
use cubecl::server::{
    Binding, ComputeServer, CopyDescriptor, IoError, KernelArguments, ProfileError, ProfilingToken,
    ServerCommunication, ServerError, ServerUtilities,
};
use cubecl::stream_id::StreamId;
use cubecl::zspace::striding::has_pitched_row_major_strides;
use cubecl::zspace::{Shape, Strides};
use cubecl::{CubeTask, MemoryAllocationMode, MemoryUsage};
use cubecl_cpp::cuda::CudaDialect;
use cubecl_cpp::cuda::mma::{CudaWmmaCompiler, contiguous_elements_cuda};
use cubecl_cpp::shared::{CompilationOptions, CppCompiler};
use cubecl_runtime::allocator::PitchedMemoryLayoutPolicy;
use cubecl_runtime::id::KernelId;
use cubecl_runtime::logging::ServerLogger;
use cubecl_runtime::memory_management::ManagedMemoryHandle;
use cubecl_runtime::storage::{ComputeStorage, ManagedResource, StorageHandle, StorageId};
use cubecl_runtime::timestamp_profiler::TimestampProfiler;
use cubecl_runtime::validation::{validate_cube_dim, validate_units};

use crate::properties::{ALIGNMENT, compilation_options, device_properties};

/// The compiler of CubeCL's CUDA runtime.
pub type CudaCompiler = CppCompiler<CudaDialect<CudaWmmaCompiler>>;

/// A kernel as it would have been handed to NVRTC.
#[derive(Debug, Clone)]
pub struct Kernel {
    /// The function that it was written as.
    pub name: String,
    /// The function to launch: the name, and types and sizes.
    pub entry: String,
    /// CUDA C++.
    pub source: String,
    /// Shared memory that is asked for at the launch, in bytes.
    pub dynamic_shared_memory: usize,
}

/// Why a launched kernel has no source.
#[derive(Debug, Clone)]
pub struct Failure {
    /// The type of the kernel.
    pub kernel: String,
    /// What the compiler or the validation said.
    pub reason: String,
}

/// What was launched on a device.
#[derive(Debug, Default)]
pub struct Launches(Mutex<Vec<Result<Kernel, Failure>>>);

impl Launches {
    /// Takes the kernels that were launched for the first time since the last call.
    pub fn take(&self) -> Vec<Result<Kernel, Failure>> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn push(&self, launched: Result<Kernel, Failure>) {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(launched);
    }
}

/// A device that is not there, of a compute capability: 80 or 90.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct NullDevice {
    /// Ten times the compute capability.
    pub version: u32,
}

impl Default for NullDevice {
    fn default() -> Self {
        Self { version: 80 }
    }
}

impl Device for NullDevice {
    fn from_id(id: DeviceId) -> Self {
        Self {
            version: id.index_id.into(),
        }
    }

    fn to_id(&self) -> DeviceId {
        DeviceId::new(0, self.version as u16)
    }
}

/// The runtime.
#[derive(Debug, Clone)]
pub struct NullCuda;

impl Runtime for NullCuda {
    type Compiler = CudaCompiler;
    type Server = NullServer;
    type Device = NullDevice;

    fn client(device: &Self::Device) -> ComputeClient<Self> {
        ComputeClient::load(device)
    }

    fn name(_client: &ComputeClient<Self>) -> &'static str {
        "cuda"
    }

    fn require_array_lengths() -> bool {
        true
    }

    fn max_cube_count() -> (u32, u32, u32) {
        (i32::MAX as u32, u16::MAX.into(), u16::MAX.into())
    }

    fn can_read_tensor(shape: &Shape, strides: &Strides) -> bool {
        has_pitched_row_major_strides(shape, strides)
    }

    fn target_properties() -> TargetProperties {
        TargetProperties {
            mma: MmaProperties {
                register_size_bits: 32,
                const_plane_size: 32,
                register_layout_a: MatrixLayout::RowMajor,
                register_layout_b: MatrixLayout::ColMajor,
                register_layout_acc: MatrixLayout::RowMajor,
                register_duplication_a: 1,
                register_duplication_b: 1,
                register_duplication_acc: 1,
                contiguous_elements: ContiguousElements::new(contiguous_elements_cuda),
            },
        }
    }

    fn enumerate_devices(_type_id: u16, _info: &Arc<Launches>) -> Vec<DeviceId> {
        vec![NullDevice::default().to_id()]
    }
}

/// Compiles what is launched and keeps the source.
#[derive(Debug)]
pub struct NullServer {
    options: CompilationOptions,
    known: HashSet<KernelId>,
    timestamps: TimestampProfiler,
    utilities: Arc<ServerUtilities<Self>>,
}

impl NullServer {
    fn compile(
        &self,
        id: &KernelId,
        kernel: &dyn CubeTask<CudaCompiler>,
        mode: ExecutionMode,
    ) -> Result<Kernel, String> {
        let properties = &self.utilities.properties;
        validate_cube_dim(properties, id).map_err(|error| error.to_string())?;
        validate_units(properties, id).map_err(|error| error.to_string())?;
        // Expanding a kernel panics where its configuration is wrong.
        let compiled = catch_unwind(AssertUnwindSafe(|| {
            kernel.compile(
                &mut CudaCompiler::default(),
                &self.options,
                mode,
                kernel.address_type(),
            )
        }))
        .map_err(|panic| message(&*panic))?
        .map_err(|error| error.to_string())?;
        let shared = compiled
            .repr
            .map_or(0, |kernel| kernel.shared_memory_size());
        let limit = properties.hardware.max_shared_memory_size;
        if shared > limit {
            return Err(format!(
                "{shared} bytes of shared memory, and a block can have {limit}"
            ));
        }
        Ok(Kernel {
            name: function(kernel.name()).to_owned(),
            entry: compiled.entrypoint_name,
            source: compiled.source,
            dynamic_shared_memory: shared,
        })
    }
}

/// The function among the modules of a kernel's type, `path::function::Function<..>`.
fn function(kernel: &str) -> &str {
    let path = kernel.split('<').next().unwrap_or_default();
    path.rsplit("::").nth(1).unwrap_or(path)
}

fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "the compiler panicked".to_owned())
}

impl DeviceService for NullServer {
    fn init(id: DeviceId) -> Self {
        let version = NullDevice::from_id(id).version;
        let utilities = ServerUtilities::new(
            device_properties(version),
            Arc::new(ServerLogger::default()),
            Arc::new(Launches::default()),
            PitchedMemoryLayoutPolicy::new(ALIGNMENT as usize),
        );
        Self {
            options: compilation_options(version),
            known: HashSet::new(),
            timestamps: TimestampProfiler::default(),
            utilities: Arc::new(utilities),
        }
    }

    fn utilities(&self) -> ServerUtilitiesHandle {
        self.utilities.clone()
    }
}

impl ServerCommunication for NullServer {
    const SERVER_COMM_ENABLED: bool = false;
}

impl ComputeServer for NullServer {
    type Kernel = Box<dyn CubeTask<CudaCompiler>>;
    type Info = Arc<Launches>;
    type MemoryLayoutPolicy = PitchedMemoryLayoutPolicy;
    type Storage = NullStorage;

    fn initialize_memory(&mut self, _memory: ManagedMemoryHandle, _size: u64, _stream: StreamId) {}

    fn logger(&self) -> Arc<ServerLogger> {
        self.utilities.logger.clone()
    }

    fn utilities(&self) -> Arc<ServerUtilities<Self>> {
        self.utilities.clone()
    }

    fn read(
        &mut self,
        _descriptors: Vec<CopyDescriptor>,
        _stream: StreamId,
    ) -> DynFut<Result<Vec<Bytes>, ServerError>> {
        Box::pin(async { Err(nothing_to_read().into()) })
    }

    fn write(&mut self, _descriptors: Vec<(CopyDescriptor, Bytes)>, _stream: StreamId) {}

    fn sync(&mut self, _stream: StreamId) -> DynFut<Result<(), ServerError>> {
        Box::pin(async { Ok(()) })
    }

    fn get_resource(
        &mut self,
        _binding: Binding,
        _stream: StreamId,
    ) -> Result<ManagedResource<()>, ServerError> {
        Err(nothing_to_read().into())
    }

    #[allow(unsafe_code, reason = "the trait's signature; nothing runs")]
    unsafe fn launch(
        &mut self,
        kernel: Self::Kernel,
        _count: CubeCount,
        _arguments: KernelArguments,
        mode: ExecutionMode,
        _stream: StreamId,
    ) {
        let mut id = kernel.id();
        id.mode(mode);
        if !self.known.insert(id.clone()) {
            return;
        }
        let compiled = self.compile(&id, &*kernel, mode);
        self.utilities.info.push(compiled.map_err(|reason| Failure {
            kernel: kernel.name().to_owned(),
            reason,
        }));
    }

    fn flush(&mut self, _stream: StreamId) -> Result<(), ServerError> {
        Ok(())
    }

    fn memory_usage(&mut self, _stream: StreamId) -> Result<MemoryUsage, ServerError> {
        Ok(MemoryUsage {
            number_allocs: 0,
            bytes_in_use: 0,
            bytes_padding: 0,
            bytes_reserved: 0,
        })
    }

    fn memory_cleanup(&mut self, _stream: StreamId) {}

    fn start_profile(&mut self, _stream: StreamId) -> Result<ProfilingToken, ServerError> {
        Ok(self.timestamps.start())
    }

    fn end_profile(
        &mut self,
        _stream: StreamId,
        token: ProfilingToken,
    ) -> Result<ProfileDuration, ProfileError> {
        self.timestamps.stop(token)
    }

    fn allocation_mode(&mut self, _mode: MemoryAllocationMode, _stream: StreamId) {}
}

fn nothing_to_read() -> IoError {
    IoError::UnsupportedIoOperation {
        backtrace: BackTrace::capture(),
    }
}

/// Storage without memory.
#[derive(Debug)]
pub struct NullStorage;

impl ComputeStorage for NullStorage {
    type Resource = ();

    fn alignment(&self) -> usize {
        ALIGNMENT as usize
    }

    fn get(&mut self, _handle: &StorageHandle) {}

    fn alloc(&mut self, _size: u64) -> Result<StorageHandle, IoError> {
        Err(nothing_to_read())
    }

    fn dealloc(&mut self, _id: StorageId) {}

    fn flush(&mut self) {}
}
