//! A backend with as many devices as a test wants, on the CPU: Flex, with tensors that know which device
//! they are on and refuse to meet those of another.

use std::sync::{Arc, OnceLock};

use burn::backend::Flex;
use burn::backend::flex::FlexDevice;
use burn::tensor::backend::{
    Backend, BackendTypes, DTypeUsageSet, Device, DeviceId, DeviceOps, ExecutionError,
};
use burn::tensor::ops::{
    ActivationOps, AttentionModuleOptions, BoolTensorOps, ConvOptions, ConvTransposeOptions,
    DeformConv2dBackward, DeformConvOptions, FloatTensor, FloatTensorOps, IntTensorOps,
    InterpolateOptions, MaxPool2dBackward, MaxPool2dWithIndices, ModuleOps, QTensorOps,
    QuantizedTensor, TransactionOps,
};
use burn::tensor::quantization::{QuantScheme, QuantizationParametersPrimitive};
use burn::tensor::{
    BoolDType, DType, Distribution, FloatDType, IntDType, Scalar, Shape, Slice, TensorData,
    TensorMetadata,
};
use burn_amp::{AmpBackend, AmpDevice};

/// The backend.
#[derive(Debug, Clone, Copy, Default)]
pub struct Workers;

/// One of its devices. Tests that run side by side use different ones.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Worker(pub u16);

impl Device for Worker {
    fn from_id(id: DeviceId) -> Self {
        Self(id.index_id)
    }

    fn to_id(&self) -> DeviceId {
        DeviceId::new(77, self.0)
    }
}

impl DeviceOps for Worker {}

impl AmpDevice for Worker {
    fn supports_dtype(&self, dtype: DType) -> bool {
        Workers::supports_dtype(self, dtype)
    }
}

impl AmpBackend for Workers {}

type Inner = FloatTensor<Flex>;

/// A tensor on a device. That of a collective is empty until it is over.
#[derive(Debug, Clone)]
pub struct Placed {
    value: Arc<OnceLock<Inner>>,
    shape: Shape,
    dtype: DType,
    device: Worker,
}

impl TensorMetadata for Placed {
    fn dtype(&self) -> DType {
        self.dtype
    }

    fn shape(&self) -> Shape {
        self.shape.clone()
    }

    fn rank(&self) -> usize {
        self.shape.num_dims()
    }
}

impl Placed {
    fn new(value: Inner, device: Worker) -> Self {
        Self {
            shape: value.shape(),
            dtype: value.dtype(),
            value: Arc::new(OnceLock::from(value)),
            device,
        }
    }

    fn get(self) -> Inner {
        let value = self.value.get().cloned();
        value.expect("a tensor of a collective is not used before it is over")
    }
}

fn common_device(op: &str, tensors: &[&Placed]) -> Worker {
    let device = tensors[0].device;
    for tensor in tensors {
        assert_eq!(tensor.device, device, "{op} on tensors of two devices");
    }
    device
}

/// Runs ops on Flex: the names behind the shape of their arguments, tensors first.
macro_rules! on_flex {
    (@one $name:ident ($($tensor:ident),+ $(; $($arg:ident: $ty:ty),+)?)) => {
        fn $name($($tensor: Placed),+ $($(, $arg: $ty)+)?) -> Placed {
            let device = common_device(stringify!($name), &[$(&$tensor),+]);
            Placed::new(Flex::$name($($tensor.get()),+ $($(, $arg)+)?), device)
        }
    };
    ($($shape:tt: $($name:ident)+;)+) => {$($(on_flex!(@one $name $shape);)+)+};
}

/// The same, for other orders: the tensors once more in brackets.
macro_rules! on_flex_ordered {
    ($(fn $name:ident[$($tensor:ident),+]($($arg:ident: $ty:ty),+);)+) => {$(
        fn $name($($arg: $ty),+) -> Placed {
            let device = common_device(stringify!($name), &[$(&$tensor),+]);
            $(let $tensor = $tensor.get();)+
            Placed::new(Flex::$name($($arg),+), device)
        }
    )+};
}

/// Creates tensors on a device.
macro_rules! create {
    ($(fn $name:ident($($arg:ident: $ty:ty),+; $($last:ident: $last_ty:ty)?);)+) => {$(
        fn $name($($arg: $ty),+, device: &Worker $(, $last: $last_ty)?) -> Placed {
            Placed::new(Flex::$name($($arg),+, &FlexDevice $(, $last)?), *device)
        }
    )+};
}

/// Reads tensors, and finds and changes their device.
macro_rules! place {
    ($into_data:ident, $device:ident, $to_device:ident) => {
        async fn $into_data(tensor: Placed) -> Result<TensorData, ExecutionError> {
            Flex::$into_data(tensor.get()).await
        }

        fn $device(tensor: &Placed) -> Worker {
            tensor.device
        }

        fn $to_device(tensor: Placed, device: &Worker) -> Placed {
            Placed {
                device: *device,
                ..tensor
            }
        }
    };
}

/// What no test needs.
macro_rules! absent {
    ($(fn $name:ident($($ty:ty),+) -> $out:ty;)+) => {$(
        fn $name($(_: $ty),+) -> $out {
            panic!("this backend has no {}", stringify!($name))
        }
    )+};
}

impl BackendTypes for Workers {
    type Device = Worker;
    type FloatTensorPrimitive = Placed;
    type FloatElem = f32;
    type IntTensorPrimitive = Placed;
    type IntElem = i32;
    type BoolTensorPrimitive = Placed;
    type BoolElem = bool;
    type QuantizedTensorPrimitive = QuantizedTensor<Flex>;
}

impl Backend for Workers {
    fn name(_device: &Worker) -> String {
        "workers".to_owned()
    }

    fn seed(_device: &Worker, seed: u64) {
        Flex::seed(&FlexDevice, seed);
    }

    fn dtype_usage(_device: &Worker, dtype: DType) -> DTypeUsageSet {
        Flex::dtype_usage(&FlexDevice, dtype)
    }

    fn device_count(_type_id: u16) -> usize {
        usize::from(u16::MAX)
    }
}

impl FloatTensorOps<Self> for Workers {
    create! {
        fn float_from_data(data: TensorData;);
        fn float_empty(shape: Shape; dtype: FloatDType);
        fn float_random(shape: Shape, distribution: Distribution; dtype: FloatDType);
    }
    place!(float_into_data, float_device, float_to_device);
    on_flex! {
        (a): float_recip float_sum float_exp float_log float_log1p float_sqrt float_abs float_cos
            float_sin float_tan float_cosh float_sinh float_tanh float_acos float_acosh float_asin
            float_asinh float_atan float_atanh float_round float_floor float_ceil float_trunc
            float_erf;
        (a, b): float_add float_sub float_mul float_div float_remainder float_matmul float_powf
            float_atan2;
        (a; value: Scalar): float_add_scalar float_sub_scalar float_mul_scalar float_div_scalar
            float_remainder_scalar float_powf_scalar_impl;
        (a; dim: usize): float_sum_dim float_mean_dim float_cumsum float_cumprod float_cummin
            float_cummax;
        (a, b; dim: usize): float_cross;
        (a; dim1: usize, dim2: usize): float_swap_dims;
        (a; axes: &[usize]): float_permute float_flip;
        (a; shape: Shape): float_reshape float_expand;
        (a; slices: &[Slice]): float_slice;
        (a; dim: usize, size: usize, step: usize): float_unfold;
        (a, b, c): float_mask_where;
        (a, b; value: Scalar): float_mask_fill;
        (a, b; dtype: BoolDType): float_equal float_greater float_greater_equal float_lower
            float_lower_equal;
        (a; value: Scalar, dtype: BoolDType): float_equal_elem float_greater_elem
            float_greater_equal_elem float_lower_elem float_lower_equal_elem;
        (a; dtype: FloatDType): float_cast;
        (a; dtype: IntDType): float_into_int;
        (a; dim: usize, dtype: IntDType): float_argmax float_argmin;
        (a; dim: usize, k: usize, dtype: IntDType): float_argtopk;
    }
    on_flex_ordered! {
        fn float_gather[a, b](dim: usize, a: Placed, b: Placed);
        fn float_scatter_add[a, b, c](dim: usize, a: Placed, b: Placed, c: Placed);
        fn float_select[a, b](a: Placed, dim: usize, b: Placed);
        fn float_select_add[a, b, c](a: Placed, dim: usize, b: Placed, c: Placed);
        fn float_slice_assign[a, b](a: Placed, slices: &[Slice], b: Placed);
    }
}

impl IntTensorOps<Self> for Workers {
    create! {
        fn int_from_data(data: TensorData;);
        fn int_empty(shape: Shape; dtype: IntDType);
        fn int_random(shape: Shape, distribution: Distribution; dtype: IntDType);
    }
    place!(int_into_data, int_device, int_to_device);
    on_flex! {
        (a): int_sum int_prod int_abs bitwise_not;
        (a, b): int_add int_sub int_mul int_div int_remainder int_matmul bitwise_and bitwise_or
            bitwise_xor bitwise_left_shift bitwise_right_shift;
        (a; value: Scalar): int_add_scalar int_sub_scalar int_mul_scalar int_div_scalar
            int_remainder_scalar bitwise_and_scalar bitwise_or_scalar bitwise_xor_scalar
            bitwise_left_shift_scalar bitwise_right_shift_scalar;
        (a; dim: usize): int_sum_dim int_prod_dim int_mean_dim int_cumsum int_cumprod int_cummin
            int_cummax int_argmax int_argmin;
        (a; dim: usize, k: usize): int_argtopk;
        (a; dim1: usize, dim2: usize): int_swap_dims;
        (a; axes: &[usize]): int_permute int_flip;
        (a; shape: Shape): int_reshape int_expand;
        (a; slices: &[Slice]): int_slice;
        (a; dim: usize, size: usize, step: usize): int_unfold;
        (a, b, c): int_mask_where;
        (a, b; value: Scalar): int_mask_fill;
        (a, b; dtype: BoolDType): int_equal int_greater int_greater_equal int_lower int_lower_equal;
        (a; value: Scalar, dtype: BoolDType): int_equal_elem int_greater_elem
            int_greater_equal_elem int_lower_elem int_lower_equal_elem;
        (a; dtype: IntDType): int_cast;
        (a; dtype: FloatDType): int_into_float;
    }
    on_flex_ordered! {
        fn int_gather[a, b](dim: usize, a: Placed, b: Placed);
        fn int_scatter_add[a, b, c](dim: usize, a: Placed, b: Placed, c: Placed);
        fn int_select[a, b](a: Placed, dim: usize, b: Placed);
        fn int_select_add[a, b, c](a: Placed, dim: usize, b: Placed, c: Placed);
        fn int_slice_assign[a, b](a: Placed, slices: &[Slice], b: Placed);
    }
}

impl BoolTensorOps<Self> for Workers {
    create! {
        fn bool_from_data(data: TensorData;);
        fn bool_empty(shape: Shape; dtype: BoolDType);
        fn bool_zeros(shape: Shape; dtype: BoolDType);
        fn bool_ones(shape: Shape; dtype: BoolDType);
    }
    place!(bool_into_data, bool_device, bool_to_device);
    on_flex! {
        (a): bool_not;
        (a, b): bool_equal bool_and bool_or;
        (a; value: Scalar): bool_equal_elem;
        (a; dim1: usize, dim2: usize): bool_swap_dims;
        (a; axes: &[usize]): bool_permute bool_flip;
        (a; shape: Shape): bool_reshape bool_expand;
        (a; slices: &[Slice]): bool_slice;
        (a; dim: usize, size: usize, step: usize): bool_unfold;
        (a, b, c): bool_mask_where;
        (a, b; value: Scalar): bool_mask_fill;
        (a; dtype: IntDType): bool_into_int;
        (a; dtype: FloatDType): bool_into_float;
    }
    on_flex_ordered! {
        fn bool_gather[a, b](dim: usize, a: Placed, b: Placed);
        fn bool_scatter_or[a, b, c](dim: usize, a: Placed, b: Placed, c: Placed);
        fn bool_select[a, b](a: Placed, dim: usize, b: Placed);
        fn bool_select_or[a, b, c](a: Placed, dim: usize, b: Placed, c: Placed);
        fn bool_slice_assign[a, b](a: Placed, slices: &[Slice], b: Placed);
    }
}

impl ActivationOps<Self> for Workers {}
impl TransactionOps<Self> for Workers {}

impl QTensorOps<Self> for Workers {
    absent! {
        fn q_from_data(TensorData, &Worker) -> QuantizedTensor<Self>;
        fn quantize(Placed, &QuantScheme, QuantizationParametersPrimitive<Self>) -> QuantizedTensor<Self>;
        fn dequantize(QuantizedTensor<Self>, FloatDType) -> Placed;
        fn q_device(&QuantizedTensor<Self>) -> Worker;
        fn q_to_device(QuantizedTensor<Self>, &Worker) -> QuantizedTensor<Self>;
        fn q_reshape(QuantizedTensor<Self>, Shape) -> QuantizedTensor<Self>;
        fn q_expand(QuantizedTensor<Self>, Shape) -> QuantizedTensor<Self>;
        fn q_swap_dims(QuantizedTensor<Self>, usize, usize) -> QuantizedTensor<Self>;
        fn q_permute(QuantizedTensor<Self>, &[usize]) -> QuantizedTensor<Self>;
        fn q_flip(QuantizedTensor<Self>, &[usize]) -> QuantizedTensor<Self>;
        fn q_select(QuantizedTensor<Self>, usize, Placed) -> QuantizedTensor<Self>;
        fn q_slice(QuantizedTensor<Self>, &[Slice]) -> QuantizedTensor<Self>;
    }

    async fn q_into_data(tensor: QuantizedTensor<Self>) -> Result<TensorData, ExecutionError> {
        Flex::q_into_data(tensor).await
    }
}

impl ModuleOps<Self> for Workers {
    absent! {
        fn conv2d(Placed, Placed, Option<Placed>, ConvOptions<2>) -> Placed;
        fn conv3d(Placed, Placed, Option<Placed>, ConvOptions<3>) -> Placed;
        fn conv_transpose2d(Placed, Placed, Option<Placed>, ConvTransposeOptions<2>) -> Placed;
        fn conv_transpose3d(Placed, Placed, Option<Placed>, ConvTransposeOptions<3>) -> Placed;
        fn deform_conv2d(Placed, Placed, Placed, Option<Placed>, Option<Placed>, DeformConvOptions<2>) -> Placed;
        fn deform_conv2d_backward(
            Placed, Placed, Placed, Option<Placed>, Option<Placed>, Placed, DeformConvOptions<2>
        ) -> DeformConv2dBackward<Self>;
        fn avg_pool2d(Placed, [usize; 2], [usize; 2], [usize; 2], bool, bool) -> Placed;
        fn avg_pool2d_backward(Placed, Placed, [usize; 2], [usize; 2], [usize; 2], bool, bool) -> Placed;
        fn adaptive_avg_pool2d(Placed, [usize; 2]) -> Placed;
        fn adaptive_avg_pool2d_backward(Placed, Placed) -> Placed;
        fn max_pool2d(Placed, [usize; 2], [usize; 2], [usize; 2], [usize; 2], bool) -> Placed;
        fn max_pool2d_with_indices(
            Placed, [usize; 2], [usize; 2], [usize; 2], [usize; 2], bool
        ) -> MaxPool2dWithIndices<Self>;
        fn max_pool2d_with_indices_backward(
            Placed, [usize; 2], [usize; 2], [usize; 2], [usize; 2], bool, Placed, Placed
        ) -> MaxPool2dBackward<Self>;
        fn interpolate(Placed, [usize; 2], InterpolateOptions) -> Placed;
        fn interpolate_backward(Placed, Placed, [usize; 2], InterpolateOptions) -> Placed;
        fn attention(
            Placed, Placed, Placed, Option<Placed>, Option<Placed>, AttentionModuleOptions
        ) -> Placed;
        fn rfft(Placed, usize, Option<usize>) -> (Placed, Placed);
        fn irfft(Placed, Placed, usize, Option<usize>) -> Placed;
    }
}

#[cfg(feature = "ddp")]
pub mod collective {
    //! What a GPU's communication library does: sums that are there when all have waited for them.

    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
    use std::time::Duration;

    use burn::tensor::backend::distributed::{
        CollectiveTensor, DistributedBackend, ReduceOperation,
    };

    use super::*;

    type Call = (Inner, Arc<OnceLock<Inner>>);

    /// The calls for one parameter that have come in.
    static CALLS: Mutex<Vec<Call>> = Mutex::new(Vec::new());
    /// The types of all tensors that were sent.
    static SENT: Mutex<Vec<DType>> = Mutex::new(Vec::new());
    static WORKERS: AtomicUsize = AtomicUsize::new(1);
    /// How many workers wait, and how often all have.
    static WAITING: Mutex<(usize, usize)> = Mutex::new((0, 0));
    static ALL_ARRIVED: Condvar = Condvar::new();

    fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
        mutex.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The types of the tensors that were sent since the last call.
    pub fn take_sent() -> Vec<DType> {
        std::mem::take(&mut lock(&SENT))
    }

    impl DistributedBackend for Workers {
        fn all_reduce(
            tensor: Placed,
            op: ReduceOperation,
            devices: Vec<DeviceId>,
        ) -> CollectiveTensor<Self> {
            WORKERS.store(devices.len(), Ordering::SeqCst);
            lock(&SENT).push(tensor.dtype);
            let result = Placed {
                value: Arc::default(),
                ..tensor.clone()
            };
            let mut calls = lock(&CALLS);
            calls.push((tensor.get(), result.value.clone()));
            if calls.len() == devices.len() {
                let (tensors, results): (Vec<_>, Vec<_>) = calls.drain(..).unzip();
                let sum = tensors.into_iter().reduce(Flex::float_add);
                let sum = sum.expect("there is at least one worker");
                let reduced = match op {
                    ReduceOperation::Sum => sum,
                    ReduceOperation::Mean => {
                        Flex::float_div_scalar(sum, (devices.len() as f32).into())
                    }
                };
                for result in results {
                    result.set(reduced.clone()).expect("a result is set once");
                }
            }
            CollectiveTensor::new(result)
        }

        /// Waits for all workers: Burn's server loses count of one that is a pass ahead.
        fn sync_collective(_device: &Worker) {
            let mut state = lock(&WAITING);
            let round = state.1;
            state.0 += 1;
            if state.0 == WORKERS.load(Ordering::SeqCst) {
                *state = (0, round + 1);
                ALL_ARRIVED.notify_all();
                return;
            }
            let timeout = Duration::from_secs(60);
            let (_state, waited) = ALL_ARRIVED
                .wait_timeout_while(state, timeout, |state| state.1 == round)
                .unwrap_or_else(PoisonError::into_inner);
            assert!(!waited.timed_out(), "a worker did not come");
        }
    }
}
