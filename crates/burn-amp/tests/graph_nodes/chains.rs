//! Chains of arithmetic with broadcast f32 operands, which are rounded once.

use burn::backend::Flex;
use burn::tensor::{DType, Tensor};
use burn_amp::{Amp, AmpConfig, Autocast, Autodiff};

use crate::common::{self, values};

type B = Autodiff<Amp<Flex>>;

/// A half activation of ones, and a row of a value that moves it by less than a half type's step.
fn in_bf16(f: impl Fn(Tensor<B, 2>, Tensor<B, 2>)) {
    Autocast::new(&AmpConfig::bf16()).unwrap().run(|| {
        let device = Default::default();
        let ones = common::tensor::<B, 2>(&[1.0; 8], [2, 4], DType::BF16, &device);
        let row = Tensor::full([1, 4], 0.001, &device).require_grad();
        f(ones, row);
    });
}

#[test]
fn should_round_a_chain_once_at_its_end() {
    in_bf16(|x, row| {
        let y = (x + row) - Tensor::<B, 2>::ones([1, 4], &row_device());
        assert_eq!(y.dtype(), DType::BF16);
        let expected = half::bf16::from_f32(1.001f32 - 1.0).to_f64();
        assert_eq!(values(y), [expected; 8]);
    });
}

fn row_device() -> burn::backend::flex::FlexDevice {
    Default::default()
}

/// A result that a program holds on to has one value, whichever op comes first.
#[test]
fn should_start_every_use_of_a_result_from_the_same_value() {
    in_bf16(|x, row| {
        let one = || Tensor::<B, 2>::ones([1, 4], &row_device());
        let y = x + row;
        let first = y.clone() - one();
        let second = y.clone() - one();
        assert_eq!(values(first), [0.0; 8]);
        assert_eq!(values(second), [0.0; 8]);
        assert_eq!(values(y), [1.0; 8]);
    });
}

#[test]
fn should_not_change_by_being_read() {
    in_bf16(|x, row| {
        let one = || Tensor::<B, 2>::ones([1, 4], &row_device());
        let chain = |is_read: bool| {
            let y = x.clone() + row.clone();
            if is_read {
                values(y.clone());
            }
            values(y - one())
        };
        assert_ne!(chain(false), [0.0; 8]);
        assert_eq!(chain(true), chain(false));
    });
}
