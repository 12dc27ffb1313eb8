//! Conversions between f32 and half, a chunk at a time.

use burn::backend::flex::FlexTensor;
use burn::tensor::{Bytes, DType};
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

/// Values per pass: small enough for the cache, and a whole number of vector registers.
const CHUNK: usize = 1024;

/// A tensor whose storage holds no more values than it shows, in whatever order: its storage is converted
/// as it is, and the result gets the same layout.
fn dense(tensor: &FlexTensor) -> FlexTensor {
    let stored = tensor.bytes().len() / tensor.dtype().size();
    if stored <= tensor.layout().num_elements() {
        return tensor.clone();
    }
    tensor.to_contiguous()
}

/// From f32 to a half type, each value prepared in f32.
pub(super) fn narrow(
    tensor: &FlexTensor,
    target: DType,
    prepare: impl Fn(f32) -> f32,
) -> FlexTensor {
    let tensor = dense(tensor);
    let values = tensor.storage::<f32>();
    let mut chunk = [0f32; CHUNK];

    let mut fill = |convert: &mut dyn FnMut(usize, &[f32])| {
        for (index, source) in values.chunks(CHUNK).enumerate() {
            let chunk = &mut chunk[..source.len()];
            for (prepared, value) in chunk.iter_mut().zip(source) {
                *prepared = prepare(*value);
            }
            convert(index * CHUNK, chunk);
        }
    };
    let bytes = if target == DType::F16 {
        let mut out = vec![f16::ZERO; values.len()];
        fill(&mut |at, chunk| out[at..at + chunk.len()].convert_from_f32_slice(chunk));
        Bytes::from_elems(out)
    } else {
        let mut out = vec![bf16::ZERO; values.len()];
        fill(&mut |at, chunk| out[at..at + chunk.len()].convert_from_f32_slice(chunk));
        Bytes::from_elems(out)
    };
    FlexTensor::new(bytes, tensor.layout().clone(), target)
}

/// From a half type to f32.
pub(super) fn widen(tensor: &FlexTensor) -> FlexTensor {
    let tensor = dense(tensor);
    let stored = tensor.bytes().len() / tensor.dtype().size();
    let mut out = vec![0f32; stored];

    if tensor.dtype() == DType::F16 {
        tensor.storage::<f16>().convert_to_f32_slice(&mut out);
    } else {
        tensor.storage::<bf16>().convert_to_f32_slice(&mut out);
    }
    FlexTensor::new(Bytes::from_elems(out), tensor.layout().clone(), DType::F32)
}

/// The nearest values of a half type, in f32.
pub(super) fn rounded(tensor: &FlexTensor, half: DType) -> FlexTensor {
    let tensor = dense(tensor);
    let values = tensor.storage::<f32>();
    let mut out = vec![0f32; values.len()];
    let (mut in_f16, mut in_bf16) = ([f16::ZERO; CHUNK], [bf16::ZERO; CHUNK]);

    for (source, target) in values.chunks(CHUNK).zip(out.chunks_mut(CHUNK)) {
        if half == DType::F16 {
            let chunk = &mut in_f16[..source.len()];
            chunk.convert_from_f32_slice(source);
            chunk.convert_to_f32_slice(target);
        } else {
            let chunk = &mut in_bf16[..source.len()];
            chunk.convert_from_f32_slice(source);
            chunk.convert_to_f32_slice(target);
        }
    }
    FlexTensor::new(Bytes::from_elems(out), tensor.layout().clone(), DType::F32)
}
