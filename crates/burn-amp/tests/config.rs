//! Configurations: presets, files, and what is refused.

use burn::backend::flex::FlexDevice;
use burn_amp::loss_scale::{DynamicLossScaleConfig, LossScaleConfig};
use burn_amp::{AmpConfig, AmpError, Autocast, Half, OpClass, Precision, Readback, Reduction};
use rstest::rstest;

fn parse(json: &str) -> Result<AmpConfig, String> {
    let config: AmpConfig = serde_json::from_str(json).map_err(|error| error.to_string())?;
    config.validate().map_err(|error| error.to_string())?;
    Ok(config)
}

#[rstest]
#[case(AmpConfig::f32(), Precision::F32, None)]
#[case(AmpConfig::bf16(), Precision::Bf16, Some(Half::Bf16))]
#[case(AmpConfig::f16(), Precision::F16, Some(Half::F16))]
fn should_name_its_precision(
    #[case] config: AmpConfig,
    #[case] precision: Precision,
    #[case] half: Option<Half>,
) {
    assert_eq!(config.precision(), precision);
    assert_eq!(precision.half(), half);
    assert_eq!(precision.to_string().parse(), Ok(precision));
}

#[test]
fn should_scale_losses_dynamically_in_f16_only() {
    let scaler = |config: AmpConfig| Autocast::new(&config).unwrap().loss_scaler().state();

    assert!(scaler(AmpConfig::f16()).is_dynamic());
    assert!(!scaler(AmpConfig::bf16()).is_enabled());
    assert!(!scaler(AmpConfig::f32()).is_enabled());
    assert_eq!(
        scaler(AmpConfig::bf16().with_loss_scale(LossScaleConfig::fixed(8.0))).scale(),
        8.0
    );
}

#[test]
fn should_keep_the_other_scale_settings_when_the_interval_is_set() {
    let dynamic = DynamicLossScaleConfig::new().with_init_scale(1024.0);
    let config = AmpConfig::f16()
        .with_loss_scale(LossScaleConfig::Dynamic(dynamic))
        .with_growth_interval(20);
    let scaler = Autocast::new(&config).unwrap().loss_scaler().state();

    assert_eq!(scaler.scale(), 1024.0);
    let expected = DynamicLossScaleConfig::new()
        .with_init_scale(1024.0)
        .with_growth_interval(20);
    assert_eq!(scaler.config(), &LossScaleConfig::Dynamic(expected));
}

#[test]
fn should_come_back_from_a_file_as_it_was_saved() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("amp.json");
    let config = AmpConfig::f16()
        .with_op("matmul", OpClass::Full)
        .with_op("gelu", OpClass::Keep)
        .with_growth_interval(100)
        .with_readback(Readback::Native)
        .with_reduction(Reduction::Bf16)
        .with_fallback(true);

    config.save(&path).unwrap();
    assert_eq!(AmpConfig::load(&path).unwrap(), config);
}

#[test]
fn should_take_defaults_for_what_a_file_leaves_out() {
    assert_eq!(parse("{}"), Ok(AmpConfig::f32()));
    assert_eq!(parse(r#"{"precision": "bf16"}"#), Ok(AmpConfig::bf16()));
    assert_eq!(
        parse(r#"{"precision": "f16", "loss_scale": {"dynamic": {"growth_interval": 20}}}"#),
        Ok(AmpConfig::f16().with_growth_interval(20))
    );
}

#[rstest]
#[case(r#"{"precison": "f16"}"#, &["precison", "precision"])]
#[case(r#"{"precision": "fp8"}"#, &["fp8", "bf16"])]
#[case(r#"{"ops": {"matmull": "full"}}"#, &["matmull", "float_matmul"])]
#[case(r#"{"ops": {"matmul": "fulll"}}"#, &["fulll", "full"])]
#[case(r#"{"ops": {"float_cast": "full"}}"#, &["float_cast", "never touch"])]
#[case(r#"{"ops": {"matmul": "exempt"}}"#, &["float_matmul", "exempt", "keep"])]
#[case(r#"{"readback": "f64"}"#, &["f64", "native"])]
#[case(r#"{"reduction": "f64"}"#, &["f64", "bf16"])]
#[case(
    r#"{"loss_scale": {"dynamic": {"growth_factor": 0.5}}}"#,
    &["growth_factor", "0.5"]
)]
#[case(
    r#"{"loss_scale": {"dynamic": {"backoff_factor": 1.5}}}"#,
    &["backoff_factor", "1.5"]
)]
#[case(r#"{"loss_scale": {"dynamic": {"growth_intervall": 1}}}"#, &["growth_intervall"])]
#[case(r#"{"loss_scale": {"static": {"scale": 0.0}}}"#, &["scale", "0"])]
fn should_refuse_by_name_and_value(#[case] json: &str, #[case] parts: &[&str]) {
    let error = parse(json).unwrap_err();
    for part in parts {
        assert!(error.contains(part), "`{part}` is not in: {error}");
    }
}

#[test]
fn should_name_the_file_that_cannot_be_used() {
    let folder = tempfile::tempdir().unwrap();
    let missing = AmpConfig::load(folder.path().join("missing.json")).unwrap_err();
    assert!(matches!(missing, AmpError::Io { .. }));
    assert!(missing.to_string().contains("missing.json"), "{missing}");

    let path = folder.path().join("broken.json");
    std::fs::write(&path, "{\"precision\": ").unwrap();
    let broken = AmpConfig::load(&path).unwrap_err();
    assert!(matches!(broken, AmpError::Json { .. }));
    assert!(broken.to_string().contains("broken.json"), "{broken}");
}

#[test]
fn should_refuse_a_bad_configuration_wherever_it_is_used() {
    let config = AmpConfig::f16().with_op("softmacks", OpClass::Full);

    let errors = [
        Autocast::new(&config).map(|_| ()).unwrap_err(),
        burn_amp::autocast(&config, || ()).unwrap_err(),
        config.init(&FlexDevice).map(|_| ()).unwrap_err(),
    ];
    for error in errors {
        assert!(error.to_string().contains("softmax"), "{error}");
    }
}

#[cfg(feature = "ndarray")]
mod without_half {
    //! NdArray has no half types.

    use burn::backend::NdArray;
    use burn::backend::ndarray::NdArrayDevice;
    use burn::tensor::{DType, Tensor};
    use burn_amp::{Amp, autocast};

    use super::*;

    #[rstest]
    #[case(AmpConfig::f16(), "F16")]
    #[case(AmpConfig::bf16(), "BF16")]
    fn should_name_the_device_and_the_type_that_it_lacks(
        #[case] config: AmpConfig,
        #[case] dtype: &str,
    ) {
        let error = config.init(&NdArrayDevice::Cpu).unwrap_err();
        assert!(matches!(error, AmpError::UnsupportedDType { .. }));
        for part in ["Cpu", dtype, "auto"] {
            assert!(error.to_string().contains(part), "{error}");
        }
    }

    #[rstest]
    #[case(AmpConfig::auto())]
    #[case(AmpConfig::f16().with_fallback(true))]
    #[case(AmpConfig::bf16().with_fallback(true))]
    fn should_run_in_f32_where_that_is_allowed(#[case] config: AmpConfig) {
        assert_eq!(config.init(&NdArrayDevice::Cpu).unwrap(), Precision::F32);

        let x = Tensor::<Amp<NdArray>, 2>::ones([2, 2], &NdArrayDevice::Cpu);
        let y = autocast(&config, || x.clone().matmul(x)).unwrap();
        assert_eq!(y.dtype(), DType::F32);
    }

    #[test]
    fn should_refuse_to_reduce_in_a_type_that_the_device_lacks() {
        let config = AmpConfig::f32().with_reduction(Reduction::Bf16);
        let error = config.init(&NdArrayDevice::Cpu).unwrap_err();
        assert!(matches!(error, AmpError::UnsupportedReduction { .. }));
        for part in ["Cpu", "Bf16"] {
            assert!(error.to_string().contains(part), "{error}");
        }
        config
            .with_fallback(true)
            .init(&NdArrayDevice::Cpu)
            .unwrap();
    }

    #[test]
    #[should_panic(expected = "does not support BF16")]
    fn should_panic_with_the_reason_where_a_scope_needs_the_type() {
        let x = Tensor::<Amp<NdArray>, 2>::ones([2, 2], &NdArrayDevice::Cpu);
        let _ = autocast(&AmpConfig::bf16(), || x.clone().matmul(x));
    }
}
