//! Theme 10 of the field cases: memory and cast caches. Case 56 is with the scopes.

use burn::backend::Flex;
use burn::module::{Module, Param};
use burn::tensor::Tensor;
use burn::tensor::activation::relu;
use burn::tensor::backend::Backend;
use burn_amp::memory::MemorySource;
use burn_amp::{Amp, AmpConfig, Autocast};

use crate::common::normal;
use crate::{HEAP, alone};

#[derive(Module, Debug)]
struct Mlp<B: Backend> {
    layers: Vec<Param<Tensor<B, 2>>>,
}

impl<B: Backend> Mlp<B> {
    fn new() -> Self {
        let layer = |seed| Param::from_tensor(normal::<B, 2>([64, 64], seed, &Default::default()));
        Self {
            layers: [81, 82, 83].map(layer).into(),
        }
    }

    /// The weights are used through transposes.
    fn forward(&self, x: Tensor<B, 2>) -> Tensor<B, 2> {
        self.layers
            .iter()
            .fold(x, |x, layer| relu(x.matmul(layer.val().transpose())))
    }
}

fn infer(model: &Mlp<Amp<Flex>>) -> Option<(u64, u64)> {
    let x = normal::<Amp<Flex>, 2>([4, 64], 84, &Default::default());
    let step = || {
        model.forward(x.clone()).sum().into_scalar();
    };
    step();
    step();
    let early = HEAP.in_use();
    (2..1000).for_each(|_| step());
    let late = HEAP.in_use();
    (early != late).then_some((early, late))
}

/// Another thread of the test harness may allocate: what grows does so every time.
fn until_steady(what: &str, mut run: impl FnMut() -> Option<(u64, u64)>) {
    let grown: Vec<_> = (0..3).map_while(|_| run()).collect();
    assert!(grown.len() < 3, "{what}: {grown:?}");
}

#[test]
fn case_55_inference_loops_do_not_grow() {
    let _alone = alone();
    let run_all = || {
        Autocast::new(&AmpConfig::bf16()).unwrap().run(|| {
            let model = Mlp::<Amp<Flex>>::new();
            until_steady("1000 forward passes", || infer(&model));
        });
    };
    run_all();
    until_steady("the model and its region", || {
        let before = HEAP.in_use();
        run_all();
        let after = HEAP.in_use();
        (before != after).then_some((before, after))
    });
}

#[test]
fn case_55_inference_loops_on_four_threads_do_not_grow() {
    let _alone = alone();
    let model = Mlp::<Amp<Flex>>::new();
    let run_all = || {
        std::thread::scope(|scope| {
            for _ in 0..4 {
                let model = model.clone();
                scope.spawn(move || {
                    Autocast::new(&AmpConfig::bf16()).unwrap().run(|| {
                        let x = normal::<Amp<Flex>, 2>([4, 64], 85, &Default::default());
                        for _ in 0..1000 {
                            model.forward(x.clone()).sum().into_scalar();
                        }
                    });
                });
            }
        });
    };
    run_all();
    until_steady("four threads", || {
        let before = HEAP.in_use();
        run_all();
        let after = HEAP.in_use();
        // Threads come and go with a few hundred bytes; a half copy of a weight is 8192.
        (after > before + 4096).then_some((before, after))
    });
}
