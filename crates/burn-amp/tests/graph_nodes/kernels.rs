//! Flex's passes over rows against the same formulas composed of Burn's ops, as NdArray runs them.

use burn::backend::flex::Layout;
use burn::backend::{Flex, NdArray};
use burn::tensor::backend::Backend;
use burn::tensor::ops::{FloatTensor, FloatTensorOps};
use burn::tensor::{DType, FloatDType, Shape, TensorData, TensorMetadata};
use burn_amp::AmpBackend;

use crate::common::SplitMix64;

fn draw(shape: &[usize], seed: u64, size: f64) -> TensorData {
    let mut rng = SplitMix64::new(seed);
    let count = shape.iter().product();
    let values: Vec<f32> = (0..count)
        .map(|_| (size * rng.next_normal()) as f32)
        .collect();
    TensorData::new(values, Shape::from(shape.to_vec()))
}

fn load<B: Backend>(data: &TensorData) -> FloatTensor<B> {
    B::float_from_data(data.clone(), &Default::default())
}

fn read<B: Backend>(tensor: FloatTensor<B>) -> Vec<f32> {
    let data = burn::tensor::read_sync(B::float_into_data(tensor)).expect("a readable tensor");
    data.convert::<f32>().to_vec().expect("f32 values")
}

/// The f32 values of a tensor after it was rounded to a type.
fn rounded(data: &TensorData, dtype: FloatDType) -> TensorData {
    let tensor = Flex::float_cast(load::<Flex>(data), dtype);
    TensorData::new(read::<Flex>(tensor), data.shape.clone())
}

fn assert_near(ours: &[f32], composed: &[f32], tolerance: f32, what: &str) {
    assert_eq!(ours.len(), composed.len(), "{what}");
    let size = composed
        .iter()
        .fold(1e-3f32, |size, value| size.max(value.abs()));
    for (ours, composed) in ours.iter().zip(composed) {
        assert!(
            (ours - composed).abs() <= tolerance * size,
            "{what}: {ours}, composed {composed}"
        );
    }
}

const TYPES: [(FloatDType, f32); 3] = [
    (FloatDType::F32, 2e-6),
    (FloatDType::F16, 1e-3),
    (FloatDType::BF16, 8e-3),
];

#[test]
fn should_have_the_layer_norm_and_gradients_of_the_composition() {
    for shape in [&[5, 7][..], &[2, 3, 33], &[1, 1], &[4, 1500]] {
        let width = *shape.last().unwrap();
        let gamma = draw(&[width], 2, 1.0);
        let beta = draw(&[width], 3, 1.0);
        let grad = draw(shape, 4, 1.0);
        for (dtype, tolerance) in TYPES {
            let x = rounded(&draw(shape, 1, 3.0), dtype);
            let composed = NdArray::<f32>::amp_layer_norm_forward(
                load::<NdArray>(&x),
                load::<NdArray>(&gamma),
                Some(load::<NdArray>(&beta)),
                1e-5,
            );
            let ours = Flex::amp_layer_norm_forward(
                Flex::amp_cast(load::<Flex>(&x), dtype),
                load::<Flex>(&gamma),
                Some(load::<Flex>(&beta)),
                1e-5,
            );
            assert_eq!(ours.output.dtype(), DType::F32);
            assert_near(
                &read::<Flex>(ours.output),
                &read::<NdArray>(composed.output),
                5e-6,
                "output",
            );

            let composed = NdArray::<f32>::amp_layer_norm_backward(
                load::<NdArray>(&x),
                load::<NdArray>(&gamma),
                composed.moments,
                load::<NdArray>(&grad),
            );
            let ours = Flex::amp_layer_norm_backward(
                Flex::amp_cast(load::<Flex>(&x), dtype),
                load::<Flex>(&gamma),
                ours.moments,
                load::<Flex>(&grad),
            );
            assert_eq!(ours.x.dtype(), DType::from(dtype));
            let pairs = [
                (ours.x, composed.x, tolerance),
                (ours.gamma, composed.gamma, 5e-6),
                (ours.beta, composed.beta, 5e-6),
            ];
            for (ours, composed, tolerance) in pairs {
                let what = format!("gradient for {shape:?} in {dtype:?}");
                let (ours, composed) = (read::<Flex>(ours), read::<NdArray>(composed));
                assert_near(&ours, &composed, tolerance, &what);
            }
        }
    }
}

#[test]
fn should_have_the_softmax_gradient_of_the_composition() {
    for shape in [&[5, 7][..], &[2, 3, 33], &[3, 1], &[2, 1500]] {
        let dim = shape.len() - 1;
        let grad = draw(shape, 6, 1.0);
        for (dtype, tolerance) in TYPES {
            let output = NdArray::<f32>::amp_softmax(load::<NdArray>(&draw(shape, 5, 2.0)), dim);
            let output = TensorData::new(read::<NdArray>(output), shape.to_vec());
            let output = rounded(&output, dtype);
            let composed = NdArray::<f32>::amp_softmax_backward(
                load::<NdArray>(&output),
                load::<NdArray>(&grad),
                dim,
                FloatDType::F32,
            );
            let ours = Flex::amp_softmax_backward(
                Flex::amp_cast(load::<Flex>(&output), dtype),
                load::<Flex>(&grad),
                dim,
                dtype,
            );
            assert_eq!(ours.dtype(), DType::from(dtype));
            let what = format!("{shape:?} in {dtype:?}");
            assert_near(
                &read::<Flex>(ours),
                &read::<NdArray>(composed),
                tolerance,
                &what,
            );
        }
    }
}

/// A rounded result does not sum to one: the gradient of a constant has to be zero all the same.
#[test]
fn should_give_no_gradient_for_a_constant_however_the_softmax_was_rounded() {
    let x = draw(&[8, 100], 7, 2.0);
    let output = Flex::amp_cast(Flex::amp_softmax(load::<Flex>(&x), 1), FloatDType::BF16);
    let constant = TensorData::new(vec![1000f32; 800], [8, 100]);
    let rounded = TensorData::new(
        read::<Flex>(Flex::amp_cast(output.clone(), FloatDType::F32)),
        [8, 100],
    );
    let f32 = FloatDType::F32;
    let ours = Flex::amp_softmax_backward(output, load::<Flex>(&constant), 1, f32);
    let composed = NdArray::<f32>::amp_softmax_backward(
        load::<NdArray>(&rounded),
        load::<NdArray>(&constant),
        1,
        f32,
    );
    for value in [read::<Flex>(ours), read::<NdArray>(composed)].concat() {
        assert!(value.abs() < 1e-3, "{value}");
    }
}

/// Flex has a GELU gradient of its own.
#[test]
fn should_have_the_gelu_gradient_of_the_composition() {
    let mut values: Vec<f32> = (-40..=40).map(|value| value as f32 / 5.0).collect();
    values.extend([1000.0, -1000.0, 1e30, -1e30]);
    let count = values.len();
    let x = TensorData::new(values, [count]);
    let grad = draw(&[count], 12, 1.0);
    let ours = Flex::amp_gelu_backward(load::<Flex>(&x), load::<Flex>(&grad));
    let composed = NdArray::<f32>::amp_gelu_backward(load::<NdArray>(&x), load::<NdArray>(&grad));
    assert_near(
        &read::<Flex>(ours),
        &read::<NdArray>(composed),
        1e-6,
        "gelu",
    );
}

/// A view's values in memory are in another order, or fewer than its storage holds.
#[test]
fn should_cast_views_as_what_they_show() {
    let data = draw(&[3, 4, 5], 8, 1.0);
    type Views = fn(FloatTensor<Flex>) -> FloatTensor<Flex>;
    let views: [Views; 6] = [
        // Windows that overlap, with as many values as the storage holds.
        |x| x.with_layout(Layout::new(Shape::new([20, 3]), vec![1, 1], 0)),
        |x| Flex::float_swap_dims(x, 0, 2),
        |x| Flex::float_permute(x, &[1, 2, 0]),
        |x| Flex::float_slice(x, &[(1..3).into(), (0..4).into(), (2..4).into()]),
        |x| Flex::float_flip(x, &[1]),
        |x| {
            // As many values as its storage holds, and not the same ones.
            let row = Flex::float_slice(x, &[(0..1).into(), (0..1).into(), (0..5).into()]);
            Flex::float_expand(row, Shape::new([3, 4, 5]))
        },
    ];
    for (index, view) in views.into_iter().enumerate() {
        for dtype in [FloatDType::F16, FloatDType::BF16] {
            let shown = view(load::<Flex>(&data));
            let expected = TensorData::new(read::<Flex>(shown.clone()), shown.shape());
            let expected = read::<Flex>(load::<Flex>(&rounded(&expected, dtype)));

            let narrowed = Flex::amp_cast(shown, dtype);
            assert_eq!(read::<Flex>(narrowed.clone()), expected, "view {index}");
            let widened = Flex::amp_cast(narrowed, FloatDType::F32);
            assert_eq!(read::<Flex>(widened), expected, "view {index}");
            let of_view = view(Flex::amp_cast(load::<Flex>(&data), dtype));
            let widened = Flex::amp_cast(of_view, FloatDType::F32);
            assert_eq!(read::<Flex>(widened), expected, "half view {index}");
        }
    }
}

#[test]
fn should_saturate_from_one_half_type_to_the_other() {
    let values = [1e9f32, -1e9, 65504.0, 0.1, f32::INFINITY];
    let tensor = load::<Flex>(&TensorData::new(values.to_vec(), [5]));
    let tensor = Flex::amp_cast_saturating(tensor, FloatDType::BF16);
    let tensor = Flex::amp_cast_saturating(tensor, FloatDType::F16);
    let expected = [65504.0, -65504.0, 65504.0, 0.100_097_656, f32::INFINITY];
    assert_eq!(read::<Flex>(tensor), expected);
}

#[test]
#[should_panic(expected = "a layer norm over 4 values needs as many scales and biases")]
fn should_refuse_a_norm_with_too_few_scales() {
    let x = draw(&[2, 4], 10, 1.0);
    Flex::amp_layer_norm(
        load::<Flex>(&x),
        load::<Flex>(&draw(&[2], 11, 1.0)),
        None,
        1e-5,
    );
}

#[test]
fn should_cast_a_slice_without_the_rest_of_its_storage() {
    let x = load::<Flex>(&draw(&[64, 64], 13, 1.0));
    let slice = Flex::float_slice(x, &[(0..1).into(), (0..64).into()]);
    assert_eq!(Flex::amp_cast(slice, FloatDType::F16).bytes().len(), 128);
}

#[test]
fn should_take_rows_without_values() {
    let empty = TensorData::new(Vec::<f32>::new(), [0, 4]);
    let gamma = draw(&[4], 9, 1.0);
    let output = Flex::amp_layer_norm(load::<Flex>(&empty), load::<Flex>(&gamma), None, 1e-5);
    assert_eq!(output.shape().to_vec(), [0, 4]);
    let output = Flex::amp_softmax(load::<Flex>(&empty), 1);
    let gradient = Flex::amp_softmax_backward(output.clone(), output, 1, FloatDType::F16);
    assert_eq!(gradient.shape().to_vec(), [0, 4]);
}
