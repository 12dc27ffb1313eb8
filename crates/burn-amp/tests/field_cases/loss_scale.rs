//! Theme 3: the loss scale at its limits.

use burn::module::Module;
use burn::optim::{Optimizer, SgdConfig};
use burn::tensor::backend::AutodiffBackend;
use burn_amp::loss_scale::{
    DynamicLossScaleConfig, HysteresisMode, LossScaleConfig, LossScaleConfigError,
};
use burn_amp::{AmpConfig, AmpError, AmpOptimizer, AmpOptimizerConfig, Autocast, GradScaler};

use crate::support::{Scalar, Scaling, Training, Vectors, amp16_from, amp16_with, assert_within};

type Sgd<B> = burn::optim::adaptor::OptimizerAdaptor<
    burn::optim::Sgd<<B as AutodiffBackend>::InnerBackend>,
    Vectors<B>,
    B,
>;

fn sgd<B: AutodiffBackend>() -> AmpOptimizer<Sgd<B>> {
    AmpOptimizerConfig::new().init(SgdConfig::new().init())
}

/// Steps on one weight with a gradient, and returns it.
fn step<B: AutodiffBackend>(
    optim: &mut AmpOptimizer<Sgd<B>>,
    model: Vectors<B>,
    grad: f32,
) -> Vectors<B> {
    let grads = model.gradients(&[&[grad]]);
    optim.step(1.0, model, grads)
}

#[test]
fn case_17_the_scale_has_a_floor_and_being_stuck_is_said() {
    fn check<B: AutodiffBackend>() {
        let amp = amp16_from(65536.0);
        let _scope = amp.enter();
        let mut optim = sgd::<B>();
        let mut model = Vectors::<B>::new(&[&[3.0]]);
        let floor = DynamicLossScaleConfig::new().min_scale;
        let mut first_stuck = None;

        for skip in 1..=200 {
            model = step(&mut optim, model, f32::INFINITY);
            assert!(optim.outcome().unwrap().is_skipped());
            assert_eq!(model.values(), [[3.0]]);
            assert!(optim.scale() >= floor && optim.scale().recip().is_finite());
            let update = optim.scale_update().unwrap();
            if update.stuck {
                first_stuck.get_or_insert(skip);
                assert!(update.to_string().contains("its minimum; "), "{update}");
            }
        }
        // 2¹⁶ reaches 2⁻¹⁴ after 30 skips; 20 more at the minimum are the default for being stuck.
        assert_eq!(first_stuck, Some(50));
        assert_eq!(optim.scale(), floor);
        assert_eq!(optim.counters().skipped, 200);

        model = step(&mut optim, model, 1.0);
        assert!(optim.outcome().unwrap().is_applied());
        assert!(!optim.scale_update().unwrap().stuck);
        assert_eq!(model.values(), [[2.0]]);
    }
    in_both_orders!(check());
}

#[test]
fn case_17_a_backward_pass_at_the_floor_is_exact() {
    fn check<B: AutodiffBackend>(scaling: Scaling) {
        let amp = amp16_with(DynamicLossScaleConfig::new().with_init_scale(1.0 / 16384.0));
        let _scope = amp.enter();
        let mut training = Training::new(scaling, &amp, SgdConfig::new().init());
        let model = Vectors::<B>::new(&[&[3.0]]);
        let loss = model.loss(&[&[1.0]]);
        let (model, outcome) = training.step(1.0, model, loss);
        assert!(outcome.is_applied());
        assert_eq!(model.values(), [[2.0]]);
    }
    in_every_way!(check());
}

#[test]
fn case_19_the_scale_has_a_ceiling() {
    fn check_ceiling<B: AutodiffBackend>(scaling: Scaling, ceiling: f32) {
        let amp = amp16_with(
            DynamicLossScaleConfig::new()
                .with_init_scale(120f32.exp2())
                .with_max_scale(ceiling)
                .with_growth_interval(1),
        );
        let _scope = amp.enter();
        let mut training = Training::new(scaling, &amp, SgdConfig::new().init());
        let mut model = Vectors::<B>::new(&[&[1.0]]);

        for _step in 0..20 {
            let loss = model.loss(&[&[1e-30]]);
            let (stepped, outcome) = training.step(1e30, model, loss);
            model = stepped;
            assert!(outcome.is_applied());
            assert!(training.scale(&amp) <= ceiling);
        }
        assert_eq!(training.scale(&amp), ceiling);
        assert_within(model.values()[0][0].into(), -19.0, 1e-5);

        let loss = model.loss(&[&[f32::NAN]]);
        let (_, outcome) = training.step(1.0, model, loss);
        assert!(outcome.is_skipped());
        assert_eq!(training.scale(&amp), ceiling / 2.0);
    }
    fn check<B: AutodiffBackend>(scaling: Scaling) {
        // One of our own, and the largest power of two that f32 has.
        for exponent in [122f32, 127.0] {
            check_ceiling::<B>(scaling, exponent.exp2());
        }
    }
    in_every_way!(check());
}

#[test]
fn case_19_a_growth_that_would_be_infinite_does_not_happen() {
    fn check<B: AutodiffBackend>() {
        let amp = amp16_with(
            DynamicLossScaleConfig::new()
                .with_init_scale(1e20)
                .with_max_scale(f32::MAX)
                .with_growth_factor(1e30)
                .with_growth_interval(1),
        );
        let _scope = amp.enter();
        let mut optim = sgd::<B>();
        let model = step(&mut optim, Vectors::<B>::new(&[&[1.0]]), 1.0);
        assert_eq!(optim.scale(), 1e20);
        step(&mut optim, model, f32::INFINITY);
        assert_eq!(optim.scale(), 0.5e20);
    }
    in_both_orders!(check());
}

#[test]
fn case_20_the_verdict_is_about_the_unscaled_gradient() {
    fn check<B: AutodiffBackend>(scaling: Scaling) {
        let amp = amp16_from((-10f32).exp2());
        let _scope = amp.enter();
        let mut training = Training::new(scaling, &amp, SgdConfig::new().init());
        let model = Vectors::<B>::new(&[&[1e-30]]);
        // In two factors, so that the loss and the scaled gradient, 3e38, are finite.
        let loss = model.loss(&[&[1e20]]).mul_scalar(3.072e21);
        let (model, outcome) = training.step(1.0, model, loss);
        assert!(outcome.is_skipped(), "{outcome}");
        assert_eq!(model.values(), [[1e-30]]);
    }
    in_every_way!(check());
}

#[test]
fn case_20_scales_without_a_finite_reciprocal_are_refused() {
    let scale = (-130f32).exp2();
    let refused = |scaling| {
        let config = AmpConfig::f16().with_loss_scale(scaling);
        let error = Autocast::new(&config).unwrap_err();
        let AmpError::LossScale(error) = error else {
            panic!("{error}")
        };
        error
    };
    let error = refused(LossScaleConfig::fixed(scale));
    assert_eq!(error, LossScaleConfigError::StaticScale(scale));
    let error = refused(LossScaleConfig::Dynamic(
        DynamicLossScaleConfig::new()
            .with_min_scale(scale)
            .with_init_scale(scale),
    ));
    assert_eq!(error, LossScaleConfigError::MinScale(scale));
    assert!(GradScaler::new(LossScaleConfig::fixed(scale)).is_err());
}

#[test]
fn case_20_a_zero_gradient_at_the_smallest_scale_is_zero() {
    fn check<B: AutodiffBackend>(scaling: Scaling) {
        let smallest = DynamicLossScaleConfig::new()
            .with_min_scale(f32::MIN_POSITIVE)
            .with_init_scale(f32::MIN_POSITIVE);
        let amp = amp16_with(smallest);
        let _scope = amp.enter();
        let mut training = Training::new(scaling, &amp, SgdConfig::new().init());
        let model = Vectors::<B>::new(&[&[1.0]]);
        let loss = model.loss(&[&[0.0]]);
        let (model, outcome) = training.step(1.0, model, loss);
        assert!(outcome.is_applied());
        assert_eq!(model.values(), [[1.0]]);
    }
    in_every_way!(check());
}

#[test]
fn case_22_the_scale_may_fall_below_one() {
    fn check<B: AutodiffBackend>(scaling: Scaling) {
        let amp = amp16_with(
            DynamicLossScaleConfig::new()
                .with_init_scale(1.0)
                .with_min_scale((-10f32).exp2()),
        );
        let _scope = amp.enter();
        let mut training = Training::new(scaling, &amp, SgdConfig::new().init());
        let mut model = Scalar::<B>::new(0.0);
        let mut skips = 0;
        loop {
            let loss = model.loss(1e6);
            let (stepped, outcome) = training.step(1.0, model, loss);
            model = stepped;
            if outcome.is_applied() {
                break;
            }
            skips += 1;
            assert_eq!(model.value(), 0.0);
        }
        assert_eq!(skips, 4);
        assert_eq!(training.scale(&amp), (-4f32).exp2());
        assert_within((-model.value()).into(), 1e6, 1e-3);
    }
    in_every_way!(check());
}

#[test]
fn case_22_a_floor_that_is_too_high_is_said_after_the_configured_skips() {
    fn check<B: AutodiffBackend>() {
        let amp = amp16_with(
            DynamicLossScaleConfig::new()
                .with_init_scale(1.0)
                .with_min_scale(1.0)
                .with_max_consecutive_skips(7),
        );
        let _scope = amp.enter();
        let mut optim = AmpOptimizerConfig::new().init(SgdConfig::new().init());
        let mut model = Scalar::<B>::new(0.0);
        let mut stuck = Vec::new();
        for _step in 0..10 {
            // In Burn's order nothing is scaled here, which a scale of one does not need.
            let grads = model.loss(1e6).backward();
            let grads = burn::optim::GradientsParams::from_grads(grads, &model);
            model = optim.step(1.0, model, grads);
            let update = optim.scale_update().unwrap();
            assert!(update.found_inf && update.at_minimum);
            assert_eq!(update.current, 1.0);
            stuck.push(update.stuck);
        }
        assert_eq!(model.value(), 0.0);
        assert_eq!(stuck, [vec![false; 6], vec![true; 4]].concat());
        assert_eq!(model.num_params(), 1);
    }
    in_both_orders!(check());
}

#[test]
fn case_23_hysteresis_delays_the_fall_and_never_the_skip() {
    const OK: f32 = 1.0;
    const BAD: f32 = f32::INFINITY;

    /// The scales after each step, from 1024.
    fn check_scale_sequence<B: AutodiffBackend>(
        hysteresis: u32,
        mode: HysteresisMode,
        grads: &[f32],
        expected: &[f32],
    ) {
        let amp = amp16_with(
            DynamicLossScaleConfig::new()
                .with_init_scale(1024.0)
                .with_hysteresis(hysteresis)
                .with_hysteresis_mode(mode),
        );
        let _scope = amp.enter();
        let mut optim = sgd::<B>();
        let mut model = Vectors::<B>::new(&[&[1.0]]);
        for (grad, expected) in grads.iter().zip(expected) {
            let before = amp.loss_scaler().scale();
            model = step(&mut optim, model, *grad);
            assert_eq!(optim.outcome().unwrap().is_skipped(), *grad == BAD);
            assert_eq!(amp.loss_scaler().scale(), *expected, "{mode:?}");
            // What is reported is what happened.
            let update = optim.scale_update().unwrap();
            assert_eq!((update.previous, update.current), (before, *expected));
            assert_eq!(update.to_string().contains("->"), before != *expected);
        }
    }
    fn check<B: AutodiffBackend>() {
        use HysteresisMode::{Consecutive, Total};
        let steps = [BAD, OK, BAD, OK, BAD, BAD];

        let scales = [1024.0, 1024.0, 1024.0, 1024.0, 1024.0, 512.0];
        check_scale_sequence::<B>(2, Consecutive, &steps, &scales);
        let scales = [1024.0, 1024.0, 512.0, 512.0, 512.0, 256.0];
        check_scale_sequence::<B>(2, Total, &steps, &scales);
        let scales = [512.0, 512.0, 256.0, 256.0, 128.0, 64.0];
        check_scale_sequence::<B>(1, Consecutive, &steps, &scales);
        check_scale_sequence::<B>(1, Total, &steps, &scales);
    }
    in_both_orders!(check());
}
