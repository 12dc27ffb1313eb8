//! Divides gradients by the loss scale and flags those that are not finite, many in one launch.
//!
//! The arithmetic is that of PyTorch's `_amp_foreach_non_finite_check_and_unscale_`: a value is widened
//! to f32, multiplied with the reciprocal of the scale, and stored whether it is finite or not. There
//! are two differences. Where PyTorch raises one flag, each gradient has two here, so that the one
//! read by the host names the parameter and tells infinities from NaN. And the product is looked at,
//! not the factor: they differ where a scale below one takes a finite gradient beyond f32.

use cubecl::ir::StorageType;
use cubecl::prelude::*;
use cubecl::server::Handle;

use crate::counters::{CHECK, UNSCALE};
use crate::device::{require, vector_size};
use crate::tensor::array;
use crate::{DeviceTensor, FloatType, KernelError};

const UNITS: u32 = 256;

/// Every length of the list is a kernel to compile, and the time to compile it grows with the length.
const MAX_LIST: usize = 64;

/// The buffers of a launch beside the gradients: the reciprocal of the scale, and the flags.
const OTHER_BINDINGS: usize = 2;

/// The flags of a list of gradients, on the device: `[gradients, 2]` values of 32 bits, of which the
/// first is 1 if a gradient has an infinity and the second if it has a NaN.
#[derive(Debug, Clone)]
pub struct Flags {
    /// The values, in the order of the list.
    pub handle: Handle,
    /// The number of gradients.
    pub len: usize,
}

/// What a gradient has beside finite values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Found {
    /// Whether there is an infinity.
    pub infinity: bool,
    /// Whether there is a NaN.
    pub nan: bool,
}

impl Flags {
    /// Waits for the device and reads all flags at once.
    pub fn read<R: Runtime>(self, client: &ComputeClient<R>) -> Vec<Found> {
        if self.len == 0 {
            return Vec::new();
        }
        let bytes = client.read_one_unchecked(self.handle);
        u32::from_bytes(&bytes)
            .chunks_exact(2)
            .take(self.len)
            .map(|flags| Found {
                infinity: flags[0] != 0,
                nan: flags[1] != 0,
            })
            .collect()
    }
}

/// Multiplies gradients with `inv_scale`, a buffer of one f32, and flags those that are not finite
/// then. The results, f32, take the gradients' places in the list; an f32 gradient whose buffer
/// nothing else holds is written in place. An error leaves the list as it was.
///
/// # Shapes
///
/// - grads: any, contiguous
///
/// # Errors
///
/// A gradient is not contiguous, the device lacks a type, or binds fewer than four buffers.
pub fn unscale_and_check<R: Runtime>(
    client: &ComputeClient<R>,
    grads: &mut [DeviceTensor],
    inv_scale: &Handle,
) -> Result<Flags, KernelError> {
    let plan = Plan::new(client, grads, |grad| {
        if grad.dtype == FloatType::F32 && grad.handle.can_mut() {
            Access::InPlace
        } else {
            Access::Copy
        }
    })?;
    let flags = Flags::zeros(client, grads.len());
    let outputs: Vec<_> = grads
        .iter()
        .zip(&plan.access)
        .map(|(grad, access)| match access {
            Some(Access::InPlace) => grad.clone(),
            _ => DeviceTensor::empty(client, grad.shape.clone(), FloatType::F32),
        })
        .collect();
    for launch in &plan.launches {
        let mut sources = SequenceArg::new();
        let mut results = SequenceArg::new();
        let mut results_in_place = SequenceArg::new();
        let mut slots = SequenceArg::new();
        for index in launch.padded() {
            // A list is filled up with empty gradients to a length that has a kernel.
            let (source, result, len) = match index {
                Some(index) => (&grads[index], &outputs[index].handle, grads[index].len()),
                None => (&grads[launch.indices[0]], &flags.handle, 0),
            };
            match launch.access {
                Access::InPlace => results_in_place.push(array(result, len)),
                _ => {
                    sources.push(array(&source.handle, len));
                    results.push(array(result, len));
                }
            }
            slots.push(index.unwrap_or(0) as u32);
        }
        // SAFETY: units walk over the elements of each array and no further.
        #[allow(unsafe_code)]
        unsafe {
            match launch.access {
                Access::InPlace => unscale_in_place::launch_unchecked::<R>(
                    client,
                    launch.cubes.clone(),
                    CubeDim::new_1d(UNITS),
                    launch.address_type,
                    launch.vector,
                    results_in_place,
                    slots,
                    array(inv_scale, 1),
                    array(&flags.handle, 2 * flags.len),
                ),
                _ => unscale_to::launch_unchecked::<R>(
                    client,
                    launch.cubes.clone(),
                    CubeDim::new_1d(UNITS),
                    launch.address_type,
                    launch.vector,
                    sources,
                    results,
                    slots,
                    array(inv_scale, 1),
                    array(&flags.handle, 2 * flags.len),
                    launch.dtype.into(),
                ),
            }
        }
        UNSCALE.add_one();
    }
    grads.clone_from_slice(&outputs);
    Ok(flags)
}

/// Flags gradients that are not finite, and leaves them alone.
///
/// # Shapes
///
/// - grads: any, contiguous
///
/// # Errors
///
/// A gradient is not contiguous, the device lacks a type, or binds fewer than three buffers.
pub fn check<R: Runtime>(
    client: &ComputeClient<R>,
    grads: &[DeviceTensor],
) -> Result<Flags, KernelError> {
    let plan = Plan::new(client, grads, |_| Access::Read)?;
    let flags = Flags::zeros(client, grads.len());
    for launch in &plan.launches {
        let mut sources = SequenceArg::new();
        let mut slots = SequenceArg::new();
        for index in launch.padded() {
            let source = &grads[index.unwrap_or(launch.indices[0])];
            let len = index.map_or(0, |index| grads[index].len());
            sources.push(array(&source.handle, len));
            slots.push(index.unwrap_or(0) as u32);
        }
        // SAFETY: units walk over the elements of each array and no further.
        #[allow(unsafe_code)]
        unsafe {
            check_only::launch_unchecked::<R>(
                client,
                launch.cubes.clone(),
                CubeDim::new_1d(UNITS),
                launch.address_type,
                launch.vector,
                sources,
                slots,
                array(&flags.handle, 2 * flags.len),
                launch.dtype.into(),
            );
        }
        CHECK.add_one();
    }
    Ok(flags)
}

/// The most gradients that one launch takes on a device, if all are alike: of f32 gradients that are
/// written in place, or of others.
///
/// # Errors
///
/// The device binds too few buffers for a single gradient.
pub fn gradients_at_once<R: Runtime>(
    client: &ComputeClient<R>,
    in_place: bool,
) -> Result<usize, KernelError> {
    let access = if in_place {
        Access::InPlace
    } else {
        Access::Copy
    };
    access.limit(client)
}

impl Flags {
    fn zeros<R: Runtime>(client: &ComputeClient<R>, len: usize) -> Self {
        let zeros = vec![0u32; 2 * len.max(1)];
        Self {
            handle: client.create_from_slice(u32::as_bytes(&zeros)),
            len,
        }
    }
}

/// What a launch does with the gradients' buffers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Access {
    Read,
    Copy,
    InPlace,
}

impl Access {
    fn bindings(self) -> usize {
        match self {
            Self::Read | Self::InPlace => 1,
            Self::Copy => 2,
        }
    }

    fn limit<R: Runtime>(self, client: &ComputeClient<R>) -> Result<usize, KernelError> {
        let limit = client.properties().hardware.max_bindings as usize;
        let room = limit.saturating_sub(OTHER_BINDINGS) / self.bindings();
        match room.min(MAX_LIST).checked_ilog2() {
            Some(power) => Ok(1 << power),
            None => Err(KernelError::TooManyBindings {
                needed: OTHER_BINDINGS + self.bindings(),
                limit,
            }),
        }
    }
}

/// Gradients that one launch takes.
struct Launch {
    indices: Vec<usize>,
    /// How many the kernel was made for: a power of two.
    size: usize,
    access: Access,
    dtype: FloatType,
    vector: usize,
    cubes: CubeCount,
    address_type: AddressType,
}

impl Launch {
    fn padded(&self) -> impl Iterator<Item = Option<usize>> + '_ {
        let indices = self.indices.iter().copied().map(Some);
        indices.chain(std::iter::repeat(None)).take(self.size)
    }
}

struct Plan {
    /// How each gradient is used; none for an empty one.
    access: Vec<Option<Access>>,
    launches: Vec<Launch>,
}

impl Plan {
    fn new<R: Runtime>(
        client: &ComputeClient<R>,
        grads: &[DeviceTensor],
        access: impl Fn(&DeviceTensor) -> Access,
    ) -> Result<Self, KernelError> {
        let mut groups: Vec<((Access, FloatType, usize), Vec<usize>)> = Vec::new();
        let mut accesses = Vec::with_capacity(grads.len());
        for (index, grad) in grads.iter().enumerate() {
            require(client, &[grad.dtype])?;
            grad.require_contiguous("a gradient")?;
            if grad.is_empty() {
                accesses.push(None);
                continue;
            }
            let access = access(grad);
            accesses.push(Some(access));
            let key = (access, grad.dtype, vector_size(client, &[grad.len()]));
            match groups.iter_mut().find(|(group, _)| *group == key) {
                Some((_, indices)) => indices.push(index),
                None => groups.push((key, vec![index])),
            }
        }
        let mut launches = Vec::new();
        for ((access, dtype, vector), indices) in groups {
            for indices in indices.chunks(access.limit(client)?) {
                let longest = indices.iter().map(|index| grads[*index].len()).max();
                let cubes = (longest.unwrap_or(1) / vector).div_ceil(UNITS as usize);
                launches.push(Launch {
                    indices: indices.to_vec(),
                    size: indices.len().next_power_of_two(),
                    access,
                    dtype,
                    vector,
                    cubes: CubeCount::Static(cubes.min(max_cubes(client)) as u32, 1, 1),
                    address_type: indices
                        .iter()
                        .map(|index| grads[*index].address_type::<R>())
                        .max()
                        .unwrap_or_default(),
                });
            }
        }
        Ok(Self {
            access: accesses,
            launches,
        })
    }
}

/// Enough cubes to keep the device busy; each walks on through the gradients.
fn max_cubes<R: Runtime>(client: &ComputeClient<R>) -> usize {
    let multiprocessors = client.properties().hardware.num_streaming_multiprocessors;
    multiprocessors.unwrap_or(64) as usize * 16
}

#[cube(launch_unchecked, address_type = "dynamic")]
fn unscale_to<I: Float, N: Size>(
    grads: &Sequence<Array<Vector<I, N>>>,
    outputs: &mut Sequence<Array<Vector<f32, N>>>,
    slots: &Sequence<u32>,
    inv_scale: &Array<f32>,
    flags: &mut Array<u32>,
    #[define(I)] _dtype: StorageType,
) {
    let inv_scale = Vector::<f32, N>::new(inv_scale[0]);
    let stride = CUBE_COUNT * CUBE_DIM as usize;
    #[unroll]
    for index in 0..comptime!(grads.len()) {
        let grad = grads.index(index);
        let output = outputs.index_mut(index);
        let mut infinity = false;
        let mut nan = false;
        let mut pos = ABSOLUTE_POS;
        while pos < grad.len() {
            let value = Vector::<f32, N>::cast_from(grad[pos]) * inv_scale;
            infinity = infinity || any::<N>(value.is_inf());
            nan = nan || any::<N>(value.is_nan());
            output[pos] = value;
            pos += stride;
        }
        raise(flags, *slots.index(index), infinity, nan);
    }
}

#[cube(launch_unchecked, address_type = "dynamic")]
fn unscale_in_place<N: Size>(
    grads: &mut Sequence<Array<Vector<f32, N>>>,
    slots: &Sequence<u32>,
    inv_scale: &Array<f32>,
    flags: &mut Array<u32>,
) {
    let inv_scale = Vector::<f32, N>::new(inv_scale[0]);
    let stride = CUBE_COUNT * CUBE_DIM as usize;
    #[unroll]
    for index in 0..comptime!(grads.len()) {
        let grad = grads.index_mut(index);
        let mut infinity = false;
        let mut nan = false;
        let mut pos = ABSOLUTE_POS;
        while pos < grad.len() {
            let value = grad[pos] * inv_scale;
            infinity = infinity || any::<N>(value.is_inf());
            nan = nan || any::<N>(value.is_nan());
            grad[pos] = value;
            pos += stride;
        }
        raise(flags, *slots.index(index), infinity, nan);
    }
}

#[cube(launch_unchecked, address_type = "dynamic")]
fn check_only<I: Float, N: Size>(
    grads: &Sequence<Array<Vector<I, N>>>,
    slots: &Sequence<u32>,
    flags: &mut Array<u32>,
    #[define(I)] _dtype: StorageType,
) {
    let stride = CUBE_COUNT * CUBE_DIM as usize;
    #[unroll]
    for index in 0..comptime!(grads.len()) {
        let grad = grads.index(index);
        let mut infinity = false;
        let mut nan = false;
        let mut pos = ABSOLUTE_POS;
        while pos < grad.len() {
            let value = Vector::<f32, N>::cast_from(grad[pos]);
            infinity = infinity || any::<N>(value.is_inf());
            nan = nan || any::<N>(value.is_nan());
            pos += stride;
        }
        raise(flags, *slots.index(index), infinity, nan);
    }
}

#[cube]
fn any<N: Size>(lanes: Vector<bool, N>) -> bool {
    let mut any = false;
    #[unroll]
    for lane in 0..N::value() {
        any = any || lanes[lane];
    }
    any
}

/// Every unit that raises a flag stores the same value, so that they need not agree on an order.
#[cube]
fn raise(flags: &mut Array<u32>, slot: u32, infinity: bool, nan: bool) {
    let first = 2usize * slot as usize;
    if infinity {
        flags[first] = 1u32;
    }
    if nan {
        flags[first + 1usize] = 1u32;
    }
}
