//! What the host gets when it reads a half tensor. Threads of their own, because a thread that has
//! used mixed precision reads half tensors as f32 from then on.

use std::thread;

use burn::backend::Flex;
use burn::tensor::backend::Backend;
use burn::tensor::{DType, Element, ElementConversion, Tensor, TensorData, Transaction};
use burn_amp::{Amp, AmpConfig, Autocast, Autodiff, Readback, full_precision};

const HALVES: [DType; 2] = [DType::F16, DType::BF16];

fn half<B: Backend>(dtype: DType) -> Tensor<B, 1> {
    crate::common::tensor(&[1.5, -2.0], [2], dtype, &Default::default())
}

/// Everything that reads: the type that comes out of each way.
fn reads<B: Backend>(dtype: DType) -> Vec<DType> {
    let transaction: Vec<TensorData> = Transaction::default()
        .register(half::<B>(dtype))
        .register(half::<B>(dtype).neg().neg())
        .execute();
    let data = [
        half::<B>(dtype).into_data(),
        half::<B>(dtype).to_data(),
        half::<B>(dtype).reshape([1, 2]).into_data(),
    ];
    data.into_iter()
        .chain(transaction)
        .map(|data| {
            assert_eq!(data.iter::<f64>().collect::<Vec<_>>(), [1.5, -2.0]);
            data.dtype
        })
        .collect()
}

fn in_own_thread(f: impl FnOnce() + Send + 'static) {
    thread::spawn(f).join().unwrap();
}

fn check<B: Backend>(config: AmpConfig, expected: fn(DType) -> DType) {
    in_own_thread(move || {
        let amp = Autocast::new(&config).unwrap();
        for dtype in HALVES {
            let reads = amp.run(|| reads::<B>(dtype));
            assert_eq!(reads, vec![expected(dtype); 5], "{config:?}");
        }
    });
}

fn check_orders(config: AmpConfig, expected: fn(DType) -> DType) {
    check::<Amp<Flex>>(config.clone(), expected);
    check::<Autodiff<Amp<Flex>>>(config.clone(), expected);
    check::<burn::backend::Autodiff<Amp<Flex>>>(config, expected);
}

#[test]
fn should_read_half_tensors_as_f32_under_mixed_precision() {
    check_orders(AmpConfig::f16(), |_| DType::F32);
    check_orders(AmpConfig::bf16(), |_| DType::F32);
}

#[test]
fn should_read_half_tensors_as_they_are_where_configured() {
    check_orders(AmpConfig::f16().with_readback(Readback::Native), |dtype| {
        dtype
    });
}

#[test]
fn should_read_half_tensors_as_they_are_where_mixed_precision_was_never_used() {
    in_own_thread(|| {
        for dtype in HALVES {
            assert_eq!(reads::<Amp<Flex>>(dtype), [dtype; 5]);
            assert_eq!(full_precision(|| reads::<Amp<Flex>>(dtype)), [dtype; 5]);
        }
    });
    check_orders(AmpConfig::f32(), |dtype| dtype);
}

#[test]
fn should_read_as_f32_also_after_the_scope_that_lowered() {
    in_own_thread(|| {
        let amp = Autocast::new(&AmpConfig::bf16()).unwrap();
        let x = Tensor::<Amp<Flex>, 2>::ones([2, 2], &Default::default());
        let low = amp.run(|| x.clone().matmul(x));
        assert_eq!(low.dtype(), DType::BF16);
        assert_eq!(low.clone().into_data().to_vec::<f32>().unwrap(), [2.0; 4]);
        let native = AmpConfig::bf16().with_readback(Readback::Native);
        let native = Autocast::new(&native).unwrap();
        assert_eq!(native.run(|| low.into_data()).dtype, DType::BF16);
    });
}

#[test]
fn should_read_a_single_value_of_a_half_tensor() {
    fn scalar<B: Backend>() -> f32 {
        let x = Tensor::<B, 2>::ones([2, 2], &Default::default());
        let low = x.clone().matmul(x);
        assert_eq!(low.dtype(), DType::F16);
        low.max().into_scalar().elem()
    }
    let amp = Autocast::new(&AmpConfig::f16()).unwrap();
    assert_eq!(amp.run(scalar::<Amp<Flex>>), 2.0);
    assert_eq!(amp.run(scalar::<Autodiff<Amp<Flex>>>), 2.0);
    assert_eq!(amp.run(scalar::<burn::backend::Autodiff<Amp<Flex>>>), 2.0);
}

#[test]
fn should_not_change_f32_f64_and_integers_when_read() {
    fn check<E: Element>(values: [E; 2]) {
        let dtype = E::dtype();
        let amp = Autocast::new(&AmpConfig::f16()).unwrap();
        let data = TensorData::from(values);
        let device = Default::default();
        let read = amp.run(|| match dtype {
            DType::I64 => {
                let tensor =
                    Tensor::<Amp<Flex>, 1, burn::tensor::Int>::from_data(data, (&device, dtype));
                tensor.into_data()
            }
            _ => Tensor::<Amp<Flex>, 1>::from_data(data, (&device, dtype)).into_data(),
        });
        assert_eq!(read.dtype, dtype);
    }
    check([1.0f32, 2.0]);
    check([1.0f64, 2.0]);
    check([1i64, 2]);
}
