use cubecl::ir::{ElemType, FloatKind, StorageType};
use cubecl::prelude::*;
use cubecl::server::Handle;
use cubecl::zspace::{Shape, Strides};

use crate::KernelError;

/// The types that the kernels read and write. They compute in f32.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub enum FloatType {
    /// IEEE binary32.
    F32,
    /// IEEE binary16.
    F16,
    /// The upper half of an f32.
    BF16,
}

impl FloatType {
    /// The size of a value in bytes.
    pub fn size(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::BF16 => 2,
        }
    }
}

impl From<FloatType> for StorageType {
    fn from(dtype: FloatType) -> Self {
        StorageType::Scalar(ElemType::Float(match dtype {
            FloatType::F32 => FloatKind::F32,
            FloatType::F16 => FloatKind::F16,
            FloatType::BF16 => FloatKind::BF16,
        }))
    }
}

/// A tensor in a device's memory.
#[derive(Debug, Clone)]
pub struct DeviceTensor {
    /// The buffer.
    pub handle: Handle,
    /// The size of each dimension.
    pub shape: Shape,
    /// How far apart, in elements, neighbours in each dimension are; 0 where a dimension is
    /// broadcast.
    pub strides: Strides,
    /// The type of the elements.
    pub dtype: FloatType,
}

impl DeviceTensor {
    /// A tensor with its elements in a row.
    pub fn contiguous(handle: Handle, shape: impl Into<Shape>, dtype: FloatType) -> Self {
        let shape = shape.into();
        Self {
            handle,
            strides: row_major(&shape),
            shape,
            dtype,
        }
    }

    /// A contiguous tensor without values yet.
    pub fn empty<R: Runtime>(
        client: &ComputeClient<R>,
        shape: impl Into<Shape>,
        dtype: FloatType,
    ) -> Self {
        let shape = shape.into();
        let len: usize = shape.iter().product();
        // A buffer has at least one element on every runtime.
        Self::contiguous(client.empty(len.max(1) * dtype.size()), shape, dtype)
    }

    /// The number of elements.
    pub fn len(&self) -> usize {
        self.shape.iter().product()
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether the elements are in a row, in the order of their indices.
    pub fn is_contiguous(&self) -> bool {
        let expected = row_major(&self.shape);
        (0..self.shape.len()).all(|dim| self.shape[dim] == 1 || self.strides[dim] == expected[dim])
    }

    /// The tensor with its last two dimensions exchanged; nothing is moved.
    ///
    /// # Panics
    ///
    /// If there are fewer than two dimensions.
    pub fn transposed(mut self) -> Self {
        let rank = self.shape.len();
        self.shape.swap(rank - 2, rank - 1);
        self.strides.swap(rank - 2, rank - 1);
        self
    }

    pub(crate) fn require_contiguous(&self, what: &'static str) -> Result<(), KernelError> {
        if self.is_contiguous() {
            return Ok(());
        }
        Err(KernelError::NotContiguous {
            what,
            shape: format!("{:?}", self.shape.to_vec()),
            strides: format!("{:?}", self.strides.to_vec()),
        })
    }

    /// Checks that the tensor has a shape, and its elements in a row.
    pub(crate) fn require_shape(
        &self,
        what: &'static str,
        expected: &[usize],
    ) -> Result<(), KernelError> {
        if self.shape.iter().eq(expected) {
            return self.require_contiguous(what);
        }
        Err(KernelError::Shape {
            what,
            expected: format!("{expected:?}"),
            actual: format!("{:?}", self.shape.to_vec()),
        })
    }

    pub(crate) fn require_f32(&self, what: &'static str) -> Result<(), KernelError> {
        if self.dtype == FloatType::F32 {
            return Ok(());
        }
        Err(KernelError::Type {
            what,
            expected: "F32",
            actual: self.dtype,
        })
    }

    pub(crate) fn binding<R: Runtime>(&self) -> TensorBinding<R> {
        TensorBinding {
            handle: self.handle.clone().binding(),
            strides: self.strides.clone(),
            shape: self.shape.clone(),
            runtime: std::marker::PhantomData,
        }
    }

    pub(crate) fn array<R: Runtime>(&self) -> ArrayArg<R> {
        array(&self.handle, self.len())
    }

    pub(crate) fn address_type<R: Runtime>(&self) -> AddressType {
        self.binding::<R>().required_address_type(self.dtype.size())
    }
}

/// A buffer of `len` values as a kernel's argument.
pub(crate) fn array<R: Runtime>(handle: &Handle, len: usize) -> ArrayArg<R> {
    // SAFETY: the handle holds `len` values, and the kernels compare positions with it.
    #[allow(unsafe_code)]
    unsafe {
        ArrayArg::from_raw_parts(handle.clone(), len)
    }
}

fn row_major(shape: &Shape) -> Strides {
    let mut strides = vec![1; shape.len()];
    for dim in (0..shape.len().saturating_sub(1)).rev() {
        strides[dim] = strides[dim + 1] * shape[dim + 1];
    }
    Strides::from(strides)
}
