//! The runtime without a device gives the source of what is launched, and no kernel is lost.

use burn_amp_nvrtc::properties::is_known;
use burn_amp_nvrtc::runtime::{Failure, Kernel, NullCuda, NullDevice};
use cubecl::prelude::*;

#[cube(launch)]
fn doubled<F: Float>(input: &Array<F>, output: &mut Array<F>) {
    if ABSOLUTE_POS < output.len() {
        output[ABSOLUTE_POS] = input[ABSOLUTE_POS] + input[ABSOLUTE_POS];
    }
}

#[cube(launch)]
fn not_valid(output: &mut Array<f32>) {
    push_validation_error("values have to be even".to_string());
    output[ABSOLUTE_POS] = 1.0f32;
}

#[cube(launch)]
fn not_configured(output: &mut Array<f32>, #[comptime] width: u32) {
    comptime! {
        assert!(width.is_power_of_two(), "width has to be a power of two, got {width}");
    }
    output[ABSOLUTE_POS] = 1.0f32;
}

#[cube(launch)]
fn too_much_shared_memory(output: &mut Array<f32>) {
    let shared = SharedMemory::<f32>::new(1usize << 20usize);
    output[ABSOLUTE_POS] = shared[ABSOLUTE_POS];
}

/// Tests share the devices, so that each looks for its own kernel.
fn launch(
    version: u32,
    name: &str,
    launch: impl FnOnce(&ComputeClient<NullCuda>, ArrayArg<NullCuda>),
) -> Vec<Result<Kernel, Failure>> {
    // A device has one list of kernels.
    static ONE_AT_A_TIME: std::sync::Mutex<()> = std::sync::Mutex::new(());
    let _alone = ONE_AT_A_TIME
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    let client = NullCuda::client(&NullDevice { version });
    let handle = client.create_from_slice(&[0; 64 * size_of::<f32>()]);
    // SAFETY: nothing runs.
    #[allow(unsafe_code)]
    let array = unsafe { ArrayArg::from_raw_parts(handle, 64) };
    launch(&client, array);
    client.flush().expect("the device's thread runs");
    let mut launched = client.info().take();
    launched.retain(|kernel| match kernel {
        Ok(kernel) => kernel.entry.contains(name),
        Err(failure) => failure
            .kernel
            .to_lowercase()
            .contains(&name.replace('_', "")),
    });
    launched
}

fn reason(launched: &[Result<Kernel, Failure>]) -> &str {
    match launched {
        [Err(failure)] => &failure.reason,
        other => panic!("expected one failure, got {other:?}"),
    }
}

#[test]
fn a_launch_gives_the_source_of_its_kernel() {
    for version in [80, 90] {
        assert!(is_known(version));
        let double = |client: &ComputeClient<NullCuda>, output: ArrayArg<NullCuda>| {
            let input = client.empty(64 * size_of::<f32>());
            // SAFETY: nothing runs.
            #[allow(unsafe_code)]
            let input = unsafe { ArrayArg::from_raw_parts(input, 64) };
            let count = CubeCount::Static(1, 1, 1);
            doubled::launch::<f32, NullCuda>(client, count, CubeDim::new_1d(64), input, output);
        };
        let launched = launch(version, "doubled", double);
        let [Ok(kernel)] = &launched[..] else {
            panic!("expected one kernel, got {launched:?}");
        };
        let signature = format!("__global__ void __launch_bounds__(64){}", kernel.entry);
        assert!(kernel.source.contains(&signature), "{}", kernel.source);
        assert_eq!(kernel.name, "doubled");
        assert_eq!(kernel.dynamic_shared_memory, 0);

        // It is the kernel that is compiled, not the launch.
        assert!(launch(version, "doubled", double).is_empty());
    }
}

#[test]
fn a_validation_error_is_reported() {
    let launched = launch(80, "not_valid", |client, output| {
        not_valid::launch::<NullCuda>(
            client,
            CubeCount::Static(1, 1, 1),
            CubeDim::new_1d(64),
            output,
        );
    });
    assert!(reason(&launched).contains("values have to be even"));
}

#[test]
fn a_panic_while_a_kernel_is_expanded_is_reported() {
    let launched = launch(80, "not_configured", |client, output| {
        not_configured::launch::<NullCuda>(
            client,
            CubeCount::Static(1, 1, 1),
            CubeDim::new_1d(64),
            output,
            3,
        );
    });
    assert!(reason(&launched).contains("got 3"));
}

#[test]
fn a_block_that_the_device_cannot_hold_is_reported() {
    let launched = launch(80, "not_valid", |client, output| {
        not_valid::launch::<NullCuda>(
            client,
            CubeCount::Static(1, 1, 1),
            CubeDim::new_1d(2048),
            output,
        );
    });
    assert!(reason(&launched).contains("2048"));

    let launched = launch(80, "too_much_shared_memory", |client, output| {
        too_much_shared_memory::launch::<NullCuda>(
            client,
            CubeCount::Static(1, 1, 1),
            CubeDim::new_1d(64),
            output,
        );
    });
    assert!(reason(&launched).contains("shared memory"));
}
