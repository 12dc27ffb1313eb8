//! A residual network of convolutions, batch norms and ReLUs.

use burn::module::Module;
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::pool::{AdaptiveAvgPool2d, AdaptiveAvgPool2dConfig};
use burn::nn::{BatchNorm, BatchNormConfig, Linear, LinearConfig, PaddingConfig2d};
use burn::tensor::activation::relu;
use burn::tensor::backend::Backend;
use burn::tensor::{Int, Tensor};

/// The sizes of a residual network.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ResNetConfig {
    /// Images.
    pub batch: usize,
    /// Height and width of an image.
    pub size: usize,
    /// Channels of every layer.
    pub channels: usize,
    /// Layers of a convolution and a norm, two to a block.
    pub layers: usize,
    /// Classes.
    pub classes: usize,
}

/// Blocks between a convolution of the image and an average over all pixels.
#[derive(Module, Debug)]
pub struct ResNet<B: Backend> {
    stem: Conv2d<B>,
    blocks: Vec<Block<B>>,
    pool: AdaptiveAvgPool2d,
    head: Linear<B>,
}

#[derive(Module, Debug)]
struct Block<B: Backend> {
    convolutions: [Conv2d<B>; 2],
    norms: [BatchNorm<B>; 2],
}

impl ResNetConfig {
    /// Creates the network.
    pub fn init<B: Backend>(&self, device: &B::Device) -> ResNet<B> {
        let convolution = |from| {
            Conv2dConfig::new([from, self.channels], [3, 3])
                .with_padding(PaddingConfig2d::Same)
                .with_bias(false)
                .init(device)
        };
        let norm = || BatchNormConfig::new(self.channels).init(device);
        let blocks = (0..self.layers / 2).map(|_| Block {
            convolutions: [0, 1].map(|_| convolution(self.channels)),
            norms: [0, 1].map(|_| norm()),
        });
        ResNet {
            stem: convolution(3),
            blocks: blocks.collect(),
            pool: AdaptiveAvgPool2dConfig::new([1, 1]).init(),
            head: LinearConfig::new(self.channels, self.classes).init(device),
        }
    }

    /// Images and classes, the same in every run.
    pub fn data<B: Backend>(&self, device: &B::Device) -> (Tensor<B, 4>, Tensor<B, 1, Int>) {
        let shape = [self.batch, 3, self.size, self.size];
        let count = shape.iter().product::<usize>() as i64;
        let images = Tensor::<B, 1, Int>::arange(0..count, device)
            .mul_scalar(37)
            .remainder_scalar(101)
            .float()
            .reshape(shape)
            .div_scalar(50.0)
            .sub_scalar(1.0);
        let classes =
            Tensor::arange(0..self.batch as i64, device).remainder_scalar(self.classes as i64);
        (images, classes)
    }
}

impl<B: Backend> ResNet<B> {
    /// The mean cross-entropy of the classes.
    ///
    /// # Shapes
    ///
    /// - images: `[batch, 3, size, size]`, classes: `[batch]`
    /// - returns: `[1]`
    pub fn loss(&self, images: Tensor<B, 4>, classes: Tensor<B, 1, Int>) -> Tensor<B, 1> {
        let device = images.device();
        let mut x = relu(self.stem.forward(images));
        for block in &self.blocks {
            x = block.forward(x);
        }
        let features = self.pool.forward(x).flatten::<2>(1, 3);
        CrossEntropyLossConfig::new()
            .init(&device)
            .forward(self.head.forward(features), classes)
    }
}

impl<B: Backend> Block<B> {
    fn forward(&self, x: Tensor<B, 4>) -> Tensor<B, 4> {
        let [first, second] = &self.convolutions;
        let [first_norm, second_norm] = &self.norms;
        let hidden = relu(first_norm.forward(first.forward(x.clone())));
        relu(x + second_norm.forward(second.forward(hidden)))
    }
}
