//! The meter itself.

use burn::backend::Flex;
use burn::nn::{Linear, LinearConfig};
use burn::optim::AdamWConfig;
use burn_amp::loss_scale::LossScaleConfig;
use burn_amp::{Amp, AmpConfig, AmpOptimizerConfig, Autocast, Autodiff};

use crate::common::normal;
use crate::{METER, alone};

type B = Autodiff<Amp<Flex>>;

/// Four bytes of every kind: parameters and gradients in f32, and two moments.
#[test]
fn should_need_sixteen_bytes_a_parameter() {
    let _alone = alone();
    const PARAMETERS: u64 = 512 * 512 + 512;
    const OVERHEAD: u64 = 32 << 10;

    let unscaled = AmpConfig::f16().with_loss_scale(LossScaleConfig::none());
    for config in [AmpConfig::bf16(), AmpConfig::f16(), unscaled] {
        Autocast::new(&config).unwrap().run(|| {
            let device = Default::default();
            let model: Linear<B> = LinearConfig::new(512, 512).init(&device);
            let x = normal::<B, 2>([4, 512], 73, &device);
            let mut optim = AmpOptimizerConfig::new().init(AdamWConfig::new().init());
            let loss = |model: &Linear<B>| model.forward(x.clone()).mean();
            // The parameters are there, whatever the modules' laziness.
            drop(loss(&model));
            let (model, first) = METER.step(model, &mut optim, 1e-3, loss);
            assert_eq!(first.parameters, 4 * PARAMETERS);
            assert_eq!(first.gradients, 4 * PARAMETERS);
            assert!(first.fixed() <= 16 * PARAMETERS + OVERHEAD, "{first:?}");
            assert!(first.state + OVERHEAD >= 8 * PARAMETERS, "{first:?}");
            assert!(
                first.pass.kept < 4 * PARAMETERS,
                "a copy of the weights: {first:?}"
            );
            assert!(first.pass.peak >= first.gradients, "{first:?}");

            let (_, second) = METER.step(model, &mut optim, 1e-3, loss);
            assert!(second.state < OVERHEAD, "{second:?}");
        });
    }
}
