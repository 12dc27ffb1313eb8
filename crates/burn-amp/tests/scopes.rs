//! Scopes: nesting, threads, panics. Nothing here configures the device.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc;
use std::thread;

use burn::backend::Flex;
use burn::data::dataloader::DataLoaderBuilder;
use burn::data::dataloader::batcher::Batcher;
use burn::data::dataset::InMemDataset;
use burn::tensor::{DType, Tensor};
use burn_amp::{Amp, AmpConfig, Autocast, autocast, enter_full_precision, full_precision};

type B = Amp<Flex>;

/// The type that a matrix product of f32 operands has here and now.
fn product() -> DType {
    let x = Tensor::<B, 2>::ones([2, 2], &Default::default());
    x.clone().matmul(x).dtype()
}

#[test]
fn should_end_with_the_closure() {
    assert_eq!(product(), DType::F32);
    assert_eq!(autocast(&AmpConfig::bf16(), product).unwrap(), DType::BF16);
    assert_eq!(product(), DType::F32);
}

#[test]
fn should_nest() {
    let f16 = Autocast::new(&AmpConfig::f16()).unwrap();
    let bf16 = Autocast::new(&AmpConfig::bf16()).unwrap();

    let outer = f16.enter();
    assert_eq!(product(), DType::F16);
    {
        let _inner = bf16.enter();
        assert_eq!(product(), DType::BF16);
        full_precision(|| {
            assert_eq!(product(), DType::F32);
            assert_eq!(f16.run(product), DType::F16);
            assert_eq!(product(), DType::F32);
        });
        assert_eq!(product(), DType::BF16);
    }
    assert_eq!(product(), DType::F16);
    drop(outer);
    assert_eq!(product(), DType::F32);
}

#[test]
fn should_take_inner_scopes_along_when_an_outer_guard_is_dropped_first() {
    let amp = Autocast::new(&AmpConfig::f16()).unwrap();
    let outer = amp.enter();
    let inner = enter_full_precision();
    drop(outer);
    assert_eq!(product(), DType::F32);

    let again = amp.enter();
    drop(inner);
    assert_eq!(
        product(),
        DType::F16,
        "a stale guard must not end a later scope"
    );
    drop(again);
    assert_eq!(product(), DType::F32);
}

#[test]
fn should_end_when_a_panic_unwinds() {
    let amp = Autocast::new(&AmpConfig::f16()).unwrap();
    let _outer = amp.enter();

    let panicked = catch_unwind(AssertUnwindSafe(|| {
        full_precision(|| autocast(&AmpConfig::bf16(), || panic!("inside two scopes")))
    }));
    assert!(panicked.is_err());
    assert_eq!(product(), DType::F16);
}

#[test]
fn should_end_when_an_op_panics() {
    let shapes_differ = || {
        let x = Tensor::<B, 2>::ones([2, 3], &Default::default());
        x.clone().matmul(x).dtype()
    };
    assert!(catch_unwind(|| autocast(&AmpConfig::f16(), shapes_differ)).is_err());
    assert_eq!(product(), DType::F32);
}

#[test]
fn should_belong_to_the_thread_that_entered() {
    let amp = Autocast::new(&AmpConfig::f16()).unwrap();
    let _scope = amp.enter();

    let elsewhere = thread::spawn(product).join().unwrap();
    assert_eq!(elsewhere, DType::F32);

    let sent = amp.clone();
    let entered = thread::spawn(move || sent.run(product)).join().unwrap();
    assert_eq!(entered, DType::F16);
}

#[test]
fn should_not_be_disturbed_by_scopes_of_another_thread() {
    let amp = Autocast::new(&AmpConfig::f16()).unwrap();
    let _scope = amp.enter();
    let (stop, stopped) = mpsc::channel::<()>();

    let toggling = thread::spawn(move || {
        let mut toggles = 0;
        while stopped.try_recv() == Err(mpsc::TryRecvError::Empty) || toggles < 1000 {
            assert_eq!(full_precision(product), DType::F32);
            toggles += 1;
        }
    });
    for _ in 0..1000 {
        assert_eq!(product(), DType::F16);
    }
    drop(stop);
    toggling.join().unwrap();
}

#[test]
fn should_share_one_loss_scale_among_clones() {
    let amp = Autocast::new(&AmpConfig::f16()).unwrap();
    let sent = amp.clone();
    thread::spawn(move || sent.loss_scaler().set_scale(128.0).unwrap())
        .join()
        .unwrap();
    assert_eq!(amp.loss_scaler().scale(), 128.0);
}

/// Makes batches by a product, in whatever precision its thread has.
#[derive(Clone)]
struct ProductBatcher;

impl Batcher<B, f32, (DType, Vec<f32>)> for ProductBatcher {
    fn batch(
        &self,
        items: Vec<f32>,
        _device: &<B as burn::tensor::backend::BackendTypes>::Device,
    ) -> (DType, Vec<f32>) {
        (product(), items)
    }
}

#[test]
fn should_leave_the_worker_threads_of_a_data_loader_alone() {
    let amp = Autocast::new(&AmpConfig::f16()).unwrap();
    let _scope = amp.enter();
    let items: Vec<f32> = (0..16).map(|i| i as f32).collect();
    let loader = DataLoaderBuilder::new(ProductBatcher)
        .batch_size(4)
        .num_workers(2)
        .build(InMemDataset::new(items.clone()));

    let mut seen = Vec::new();
    for (dtype, batch) in loader.iter() {
        assert_eq!(dtype, DType::F32, "a scope belongs to its thread");
        assert_eq!(product(), DType::F16);
        seen.extend(batch);
    }
    seen.sort_by(f32::total_cmp);
    assert_eq!(seen, items);
}
