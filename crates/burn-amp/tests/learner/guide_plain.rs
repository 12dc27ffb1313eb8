//! Trains the guide's model.

use std::error::Error;

use burn::backend::{Autodiff, Flex};

use crate::guide_loop::{Image, Model, TrainingConfig, train};

pub type MyBackend = Flex;
pub type MyAutodiffBackend = Autodiff<MyBackend>;

pub fn run(
    artifact_dir: &str,
    config: TrainingConfig,
    images: [Vec<Image>; 2],
) -> Result<Model<MyBackend>, Box<dyn Error>> {
    let device = Default::default();
    let optim = config.optimizer.init();
    let model = train::<MyAutodiffBackend, _>(artifact_dir, config, optim, images, &device);
    Ok(model)
}
