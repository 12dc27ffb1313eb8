//! Trains the guide's model.

use std::error::Error;

use burn::backend::Flex;
use burn_amp::{Amp, AmpConfig, AmpOptimizerConfig, Autodiff};

use crate::guide_loop::{Image, Model, TrainingConfig, train};

pub type MyBackend = Amp<Flex>;
pub type MyAutodiffBackend = Autodiff<MyBackend>;

pub fn run(
    artifact_dir: &str,
    config: TrainingConfig,
    images: [Vec<Image>; 2],
) -> Result<Model<MyBackend>, Box<dyn Error>> {
    let device = Default::default();
    AmpConfig::load(format!("{artifact_dir}/amp.json"))?.init(&device)?;
    let optim = AmpOptimizerConfig::new().init(config.optimizer.init());
    let model = train::<MyAutodiffBackend, _>(artifact_dir, config, optim, images, &device);
    Ok(model)
}
