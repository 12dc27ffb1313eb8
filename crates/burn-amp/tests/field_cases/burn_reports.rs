//! Theme 13: reports about Burn and CubeCL, as far as a CPU shows them.

use burn::module::{Module, Param, ParamId};
use burn::optim::{AdamConfig, GradientsParams, Optimizer, SgdConfig};
use burn::record::{HalfPrecisionSettings, NamedMpkBytesRecorder, Recorder};
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::tensor::ops::AttentionModuleOptions;
use burn::tensor::{Bool, DType, Tensor, module};
use burn_amp::loss_scale::LossScaleConfig;
use burn_amp::{AmpConfig, AmpOptimizerConfig, Autocast, Readback};

use crate::common::{normal, parameter_bits, tensor, values};
use crate::support::{
    Ours, Plain, Scaling, Training, Vectors, amp16, amp16_from, ampbf, assert_all_finite,
    assert_values, assert_within,
};

#[test]
fn case_65_scalars_are_not_rounded_to_a_half_type() {
    fn check<B: Backend>() {
        let device = B::Device::default();
        let of = |value: f64| tensor::<B, 1>(&[value], [1], DType::F32, &device);
        assert_values(of(0.0) + 1e-8, DType::F32, &[f64::from(1e-8f32)]);
        assert_within(values(of(1e-3) * 1e-5)[0], 1e-8, 1e-6);
        assert_values(of(1.0) * 100_000.0, DType::F32, &[100_000.0]);
        assert_values(of(1.0) / 1e-8, DType::F32, &[f64::from(1e8f32)]);
        let filled = Tensor::<B, 1>::full([1], 0.1, (&device, DType::F32));
        assert_values(filled, DType::F32, &[f64::from(0.1f32)]);
        assert_values(of(0.0).clamp_min(1e-12), DType::F32, &[f64::from(1e-12f32)]);
        assert_eq!(
            of(1e-9)
                .greater_elem(1e-10)
                .into_data()
                .to_vec::<bool>()
                .unwrap(),
            [true]
        );
        let mask = Tensor::<B, 1, Bool>::from_data([true], &device);
        assert_values(of(1.0).mask_fill(mask, -1e9), DType::F32, &[-1e9]);
    }
    amp16().run(|| on_every_backend!(check()));
    ampbf().run(|| on_every_backend!(check()));
}

#[test]
fn case_65_scalars_beside_a_half_tensor_are_applied_in_f32() {
    fn check<B: Backend>() {
        let device = B::Device::default();
        let of = |value: f64| tensor::<B, 1>(&[value], [1], DType::F16, &device);
        // The scalar is 0 in f16, the result is not; and the other way about.
        assert_values(of(1000.0) * 1e-8, DType::F16, &[1.0013580322265625e-5]);
        assert_values(of(1.0 / 1024.0) * 100_000.0, DType::F16, &[97.625]);
        // Only f32 tells this scalar from 0.1 in f16.
        let equal = of(0.1)
            .equal_elem(0.1)
            .into_data()
            .to_vec::<bool>()
            .unwrap();
        assert_eq!(equal, [false]);
        assert_values(of(1.0) * 1e9, DType::F16, &[65504.0]);
    }
    fn check_guard<B: Backend>() {
        let zero = tensor::<B, 1>(&[0.0], [1], DType::F16, &B::Device::default());
        assert_values(zero.clamp_min(1e-12), DType::F16, &[(-24f64).exp2()]);
    }
    amp16().run(|| on_every_backend!(check()));
    // Burn's own autodiff takes a clamp apart, and its guard is as weak as in plain f16.
    amp16().run(check_guard::<burn_amp::Amp<burn::backend::Flex>>);
    amp16().run(check_guard::<Ours>);
}

#[test]
fn case_65_learning_rate_and_epsilon_of_adam_are_f32() {
    fn run<B: AutodiffBackend>() -> Vec<Vec<u32>> {
        let mut model = Vectors::<B>::new(&[&[1.0, -1e-6, 1e-4]]);
        let adam = AdamConfig::new().with_epsilon(1e-8).init::<B, Vectors<B>>();
        let mut optim = AmpOptimizerConfig::new().init(adam);
        for _step in 0..3 {
            let grads = model.gradients(&[&[1e-8, 3e-9, 1e-3]]);
            model = optim.step(1.234e-7, model, grads);
        }
        parameter_bits(&model)
    }
    fn check<B: AutodiffBackend>() {
        assert_eq!(run::<B>(), run::<Plain>());
    }
    amp16().run(|| in_both_orders!(check()));
    ampbf().run(|| in_both_orders!(check()));
}

#[test]
fn case_67_concatenation_and_arithmetic_of_two_float_types() {
    fn check<B: Backend>() {
        let device = B::Device::default();
        let half = || tensor::<B, 1>(&[1.0, 2.0], [2], DType::F16, &device);
        let fine = tensor::<B, 1>(&[3.0 + (-12f64).exp2()], [1], DType::F32, &device);
        let single = tensor::<B, 1>(&[0.1, 0.2], [2], DType::F32, &device);
        let sum = [0.1f32, 0.2].map(f64::from);

        let both = Tensor::cat(vec![half(), fine.clone()], 0);
        assert_values(both, DType::F32, &[1.0, 2.0, 3.000244140625]);
        let both = Tensor::cat(vec![fine, half()], 0);
        assert_values(both, DType::F32, &[3.000244140625, 1.0, 2.0]);
        let same = Tensor::cat(vec![half(), half()], 0);
        assert_values(same, DType::F16, &[1.0, 2.0, 1.0, 2.0]);
        let stacked = Tensor::stack::<2>(vec![half(), single.clone()], 0);
        assert_values(stacked, DType::F32, &[1.0, 2.0, sum[0], sum[1]]);
        let stacked = Tensor::stack::<2>(vec![half(), half()], 1);
        assert_values(stacked, DType::F16, &[1.0, 1.0, 2.0, 2.0]);
        assert_values(half().repeat_dim(0, 2), DType::F16, &[1.0, 2.0, 1.0, 2.0]);

        let added = [1.0f32 + 0.1, 2.0 + 0.2].map(f64::from);
        assert_values(half() + single.clone(), DType::F32, &added);
        assert_values(single.clone() + half(), DType::F32, &added);
        let multiplied = [0.1f32, 2.0 * 0.2].map(f64::from);
        assert_values(half() * single.clone(), DType::F32, &multiplied);
        let lower = single.lower(half()).into_data().to_vec::<bool>().unwrap();
        assert_eq!(lower, [true, true]);
    }
    amp16().run(|| on_every_backend!(check()));
    on_every_backend!(check());
}

/// Outputs of attention where nothing is visible to the first query, and the gradients.
fn attend<B: AutodiffBackend>(track: bool) -> Vec<Vec<f64>> {
    let device = B::Device::default();
    // Sixteenths, so that the inputs themselves are not rounded.
    let input = |seed| {
        let input = normal::<B, 4>([1, 2, 4, 8], seed, &device).mul_scalar(8.0);
        let input = input.round().div_scalar(16.0);
        if track { input.require_grad() } else { input }
    };
    let (q, k, v) = (input(1), input(2), input(3));
    // Causality hides all but the first key from the first query, and the mask hides that.
    let mut mask = [[[[false; 4]; 4]; 2]; 1];
    mask[0][0][0][0] = true;
    mask[0][1][0][0] = true;
    let mask = Tensor::<B, 4, Bool>::from_data(mask, &device);
    let options = AttentionModuleOptions {
        is_causal: true,
        ..Default::default()
    };
    let output = module::attention(q.clone(), k.clone(), v.clone(), Some(mask), None, options);
    let mut results = vec![values(output.clone())];
    if track {
        let factors = normal::<B, 4>([1, 2, 4, 8], 4, &device);
        let grads = (output * factors).sum().backward();
        results.extend([q, k, v].map(|input| values(input.grad(&grads).unwrap())));
    }
    results
}

#[test]
fn case_68_an_attention_row_with_everything_masked_is_zero() {
    fn check<B: AutodiffBackend>() {
        let expected = attend::<Plain>(true);
        for track in [false, true] {
            let results = attend::<B>(track);
            for result in &results {
                assert_all_finite(result);
            }
            for (index, (value, expected)) in results[0].iter().zip(&expected[0]).enumerate() {
                if index / 8 % 4 == 0 {
                    assert!(value.abs() <= 1e-3, "{value}");
                } else {
                    let allowed = 5e-3 * expected.abs().max(1.0);
                    assert!(
                        (value - expected).abs() <= allowed,
                        "{value}, expected {expected}"
                    );
                }
            }
        }
    }
    Autocast::new(&AmpConfig::f32())
        .unwrap()
        .run(|| in_both_orders!(check()));
    amp16_from(1024.0).run(|| in_both_orders!(check()));
    ampbf().run(|| in_both_orders!(check()));
}

/// Scalar layers in a row, each a matrix product.
#[derive(Module, Debug)]
struct Chain<B: Backend> {
    layers: Vec<Param<Tensor<B, 2>>>,
    /// A frozen half-precision base beside each layer.
    base: Vec<Param<Tensor<B, 2>>>,
}

impl<B: Backend> Chain<B> {
    fn new(layer: f32, base: Option<f64>) -> Self {
        let device = B::Device::default();
        let frozen = |value| {
            let base = tensor::<B, 2>(&[value], [1, 1], DType::F16, &device);
            Param::initialized(ParamId::new(), base)
        };
        Self {
            layers: (0..20)
                .map(|_| Param::from_tensor(Tensor::full([1, 1], layer, &device)))
                .collect(),
            base: base.map_or_else(Vec::new, |value| (0..20).map(|_| frozen(value)).collect()),
        }
    }

    fn loss(&self) -> Tensor<B, 1> {
        let mut x = Tensor::<B, 2>::ones([1, 1], &B::Device::default());
        for (index, layer) in self.layers.iter().enumerate() {
            let y = x.clone().matmul(layer.val());
            x = match self.base.get(index) {
                Some(base) => y + x.matmul(base.val()),
                None => y,
            };
        }
        x.sum().mul_scalar(0.01)
    }
}

#[test]
fn case_70_small_gradients_need_a_loss_scale() {
    const TRUE_GRADIENT: f64 = 1.9073e-8;

    fn ends<B: AutodiffBackend>(grads: &GradientsParams, chain: &Chain<B>) -> [f64; 2] {
        [0, 19].map(|layer| {
            let id = chain.layers[layer].id;
            values(grads.get::<B::InnerBackend, 2>(id).unwrap())[0]
        })
    }
    fn check<B: AutodiffBackend>(scaling: Scaling) {
        let amp = amp16_from(65536.0);
        let _scope = amp.enter();
        let sgd = SgdConfig::new().init::<B, Chain<B>>();
        let training = Training::new(scaling, &amp, sgd);
        for chain in [Chain::<B>::new(0.5, None), Chain::new(0.0, Some(0.5))] {
            let grads = training.differentiate(chain.loss(), &chain);
            for grad in ends(&grads, &chain) {
                assert_within(grad, TRUE_GRADIENT, 3e-3);
            }
        }
    }
    in_every_way!(check());

    let unscaled = AmpConfig::f16().with_loss_scale(LossScaleConfig::none());
    Autocast::new(&unscaled).unwrap().run(|| {
        let chain = Chain::<Ours>::new(0.5, None);
        let grads = GradientsParams::from_grads(chain.loss().backward(), &chain);
        // The last layer's gradient is a product of activations, and never in half; the first one's has
        // passed through the gradients of 19 of them.
        let [first, last] = ends(&grads, &chain);
        assert_eq!(first, 0.0);
        assert_within(last, TRUE_GRADIENT, 3e-3);
    });
}

#[test]
fn case_71_half_bytes_are_read_as_what_they_are() {
    const EXACT: [f64; 4] = [1.0, -2.5, 0.15625, 65280.0];

    fn check<B: Backend>(half: DType) {
        let device = B::Device::default();
        let single = tensor::<B, 1>(&EXACT, [4], DType::F32, &device);
        let cast = single.clone().cast(half);
        assert_values(cast.clone(), half, &EXACT);
        assert_values(cast.clone().cast(DType::F32), DType::F32, &EXACT);
        let built = tensor::<B, 1>(&EXACT, [4], half, &device);
        assert_values(built.clone(), half, &EXACT);
        assert_eq!(
            built
                .equal(cast.clone())
                .all()
                .into_data()
                .to_vec::<bool>()
                .unwrap(),
            [true]
        );
        let one = Tensor::<B, 1>::ones([1], (&device, half));
        assert_values(one.clone() + one, half, &[2.0]);

        // Reading gives f32, or the tensor's own type where that was asked for.
        assert_eq!(cast.clone().into_data().dtype, DType::F32);
        let native = match half {
            DType::F16 => AmpConfig::f16(),
            _ => AmpConfig::bf16(),
        };
        let native = Autocast::new(&native.with_readback(Readback::Native)).unwrap();
        assert_eq!(native.run(|| cast.clone().into_data().dtype), half);
    }
    amp16().run(|| on_every_backend!(check(DType::F16)));
    amp16().run(|| on_every_backend!(check(DType::BF16)));
    ampbf().run(|| on_every_backend!(check(DType::F16)));
    ampbf().run(|| on_every_backend!(check(DType::BF16)));
}

#[test]
fn case_71_values_survive_a_half_record() {
    fn check<B: Backend>() {
        let model = Vectors::<B>::new(&[&[1.0, -2.5, 0.15625, 65280.0]]);
        let recorder = NamedMpkBytesRecorder::<HalfPrecisionSettings>::new();
        let record = model.clone().into_record();
        let bytes = Recorder::<B>::record(&recorder, record, ()).unwrap();
        let record = Recorder::<B>::load(&recorder, bytes, &B::Device::default()).unwrap();
        let loaded = Vectors::<B>::new(&[&[0.0; 4]]).load_record(record);
        assert_eq!(parameter_bits(&loaded), parameter_bits(&model));
    }
    amp16().run(|| on_every_backend!(check()));
    ampbf().run(|| on_every_backend!(check()));
}
