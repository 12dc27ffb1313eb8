//! Theme 7: several shards and several optimizers.

use burn::optim::{MultiGradientsParams, Optimizer, SgdConfig};
use burn::tensor::backend::{AutodiffBackend, DeviceId};
use burn_amp::{AmpOptimizer, AmpOptimizerConfig, GradScaler, NothingRecorded, UnscaledGradients};

use crate::common::SplitMix64;
use crate::support::{Vectors, amp16_from};

type Sgd<B> = burn::optim::adaptor::OptimizerAdaptor<
    burn::optim::Sgd<<B as AutodiffBackend>::InnerBackend>,
    Vectors<B>,
    B,
>;

fn sgd<B: AutodiffBackend>() -> AmpOptimizer<Sgd<B>> {
    AmpOptimizerConfig::new().init(SgdConfig::new().init())
}

/// Steps on two vectors whose gradients come from two shards.
fn step_on_shards<B: AutodiffBackend>(
    optim: &mut AmpOptimizer<Sgd<B>>,
    model: Vectors<B>,
    [first, second]: [f32; 2],
) -> Vectors<B> {
    let mut second_only = Vectors {
        w: vec![model.w[1].clone()],
    };
    let shards = [
        model.gradients(&[&[first]]),
        second_only.gradients(&[&[second]]),
    ];
    second_only.w.clear();
    let grads = MultiGradientsParams {
        grads: shards.map(|shard| (shard, DeviceId::new(0, 0))).into(),
    };
    optim.step_multi(1.0, model, grads)
}

#[test]
fn case_43_one_verdict_over_all_shards() {
    fn check<B: AutodiffBackend>() {
        let amp = amp16_from(1024.0);
        let _scope = amp.enter();
        let mut optim = sgd::<B>();
        let model = Vectors::<B>::new(&[&[1.0], &[2.0]]);
        let model = step_on_shards(&mut optim, model, [f32::INFINITY, 1.0]);
        assert!(optim.outcome().unwrap().is_skipped());
        assert_eq!(model.values(), [[1.0], [2.0]]);
        assert_eq!((optim.scale(), amp.loss_scaler().scale()), (512.0, 512.0));

        let mut rng = SplitMix64::new(43);
        let mut model = Vectors::<B>::new(&[&[0.0], &[0.0]]);
        let mut applied = 0.0;
        for _round in 0..100 {
            let bits = rng.next_u64();
            let bad = [bits.is_multiple_of(4), (bits >> 8).is_multiple_of(4)];
            let grads = bad.map(|bad| if bad { f32::NAN } else { 1.0 });
            let scale = optim.scale();
            model = step_on_shards(&mut optim, model, grads);
            let skipped = optim.outcome().unwrap().is_skipped();
            assert_eq!(skipped, bad[0] || bad[1]);
            let factor = if skipped { 0.5 } else { 1.0 };
            assert_eq!(
                amp.loss_scaler().scale(),
                (scale * factor).max(1.0 / 16384.0)
            );
            applied += if skipped { 0.0 } else { 1.0 };
            assert_eq!(model.values(), [[-applied], [-applied]]);
        }
        assert!(applied > 0.0 && applied < 100.0);
    }
    in_both_orders!(check());
}

#[test]
fn case_43_optimizers_of_two_groups_move_one_scale_by_one_verdict() {
    fn check<B: AutodiffBackend>() {
        let amp = amp16_from(1024.0);
        let _scope = amp.enter();
        let mut rng = SplitMix64::new(44);
        let mut optims = [sgd::<B>(), sgd::<B>()];
        let mut expected = 1024.0f32;
        for round in 0..100 {
            amp.loss_scaler().begin_backward();
            let bits = rng.next_u64();
            let bad = [bits.is_multiple_of(4), (bits >> 8).is_multiple_of(4)];
            let order = if round % 2 == 0 { [0, 1] } else { [1, 0] };
            for index in order {
                let model = Vectors::<B>::new(&[&[1.0]]);
                let grad = if bad[index] { f32::INFINITY } else { 1.0 };
                let grads = model.gradients(&[&[grad]]);
                optims[index].step(1.0, model, grads);
            }
            if bad[0] || bad[1] {
                expected = (expected / 2.0).max(1.0 / 16384.0);
            }
            for optim in &optims {
                assert_eq!(optim.scale(), expected);
            }
        }
        assert_eq!(amp.loss_scaler().scale(), expected);
        assert!(expected < 1024.0);
    }
    in_both_orders!(check());
}

#[test]
fn case_44_two_optimizers_on_one_loss() {
    fn check<B: AutodiffBackend>() {
        let amp = amp16_from(1024.0);
        let _scope = amp.enter();
        let (mut on_a, mut on_b) = (sgd::<B>(), sgd::<B>());
        let (mut a, mut b) = (Vectors::<B>::new(&[&[0.0]]), Vectors::<B>::new(&[&[0.0]]));

        for (grad_of_b, values, scale, tracker) in [
            (f32::INFINITY, (-1.0, 0.0), 512.0, 0),
            (1.0, (-2.0, -1.0), 512.0, 1),
        ] {
            // A loss on both; the gradients are dictated.
            let loss = a.loss(&[&[1.0]]) + b.loss(&[&[1.0]]);
            let _grads = loss.backward();
            let grads = a.gradients(&[&[1.0]]);
            a = on_a.step(1.0, a, grads);
            let grads = b.gradients(&[&[grad_of_b]]);
            b = on_b.step(1.0, b, grads);

            assert_eq!(
                (a.values(), b.values()),
                (vec![vec![values.0]], vec![vec![values.1]])
            );
            let state = amp.loss_scaler().state();
            assert_eq!((state.scale(), state.growth_tracker()), (scale, tracker));
        }
        assert_eq!((on_a.counters().applied, on_b.counters().applied), (2, 1));
    }
    in_both_orders!(check());
}

#[test]
fn case_44_one_grad_scaler_for_two_optimizers() {
    fn check<B: AutodiffBackend>() {
        let amp = amp16_from(1024.0);
        let mut scaler = GradScaler::from(amp.loss_scaler().state());
        let mut sgd = SgdConfig::new().init::<B, Vectors<B>>();
        let (mut a, mut b) = (Vectors::<B>::new(&[&[0.0]]), Vectors::<B>::new(&[&[0.0]]));

        for (factor_of_b, values, scale, tracker) in [
            (f32::INFINITY, (-1.0, 0.0), 512.0, 0),
            (1.0, (-2.0, -1.0), 512.0, 1),
        ] {
            let loss = a.loss(&[&[1.0]]) + b.loss(&[&[factor_of_b]]);
            let mut scaled = scaler.scale(loss).backward();
            let of_a = scaler.unscale(&mut scaled, &a);
            let of_b = scaler.unscale(&mut scaled, &b);
            (a, _) = scaler.step(&mut sgd, 1.0, a, of_a);
            (b, _) = scaler.step(&mut sgd, 1.0, b, of_b);
            scaler.update().unwrap();

            assert_eq!(
                (a.values(), b.values()),
                (vec![vec![values.0]], vec![vec![values.1]])
            );
            let state = scaler.loss_scaler();
            assert_eq!((state.scale(), state.growth_tracker()), (scale, tracker));
        }
        // There is nothing to update by before a step, and an early update is a verdict of its own.
        assert_eq!(scaler.update(), Err(NothingRecorded));
        for model in [a, b] {
            let grads = model.gradients(&[&[f32::NAN]]);
            let grads = UnscaledGradients::<B>::from_params(grads, &model);
            scaler.step(&mut sgd, 1.0, model, grads);
            scaler.update().unwrap();
        }
        assert_eq!(scaler.loss_scaler().scale(), 128.0);
    }
    in_both_orders!(check());
}
