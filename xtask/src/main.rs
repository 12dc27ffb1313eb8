//! The project's chores: `cargo xtask validate` is the one to remember.

mod gpu_bundle;
mod nvrtc;
mod resume_check;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::{Parser, Subcommand};
use xshell::{Shell, cmd};

/// The chores of the burn-amp workspace.
#[derive(Parser)]
struct Cli {
    #[command(subcommand)]
    chore: Chore,
}

#[derive(Subcommand)]
enum Chore {
    /// Everything that CI runs: format, lints, docs, features, tests in debug and release, Vulkan, resuming,
    /// NVRTC.
    Validate,
    /// Formatting, clippy and rustdoc, warnings denied.
    Lint,
    /// Type-checks burn-amp with each feature alone, and with those that belong together.
    Features,
    /// All tests, in debug and in release: some of Burn's checks exist in debug builds only.
    Test,
    /// The GPU backends on Vulkan. Without a device the tests pass with a message, unless
    /// BURN_AMP_REQUIRE_VULKAN is set; Debian's mesa-vulkan-drivers provides one on the CPU.
    Vulkan,
    /// Compiles the kernels' CUDA sources by NVRTC for two architectures, without a GPU. Fetches NVRTC
    /// (about 100 MB) the first time.
    Nvrtc(nvrtc::Options),
    /// Kills a training at random points, resumes it, and compares it bit by bit with one that ran through.
    ResumeCheck(resume_check::Options),
    /// The program that proves burn-amp on a GPU, with what it needs there, as one archive.
    GpuBundle,
}

/// Each alone, none, and together. The GPU backends need no toolkit to compile.
const FEATURES: &[&str] = &[
    "",
    "flex",
    "ndarray",
    "train",
    "ddp",
    "fusion",
    "cuda",
    "vulkan",
    "cuda,fusion,autotune",
    "vulkan,fusion",
    "flex,ndarray,cuda,vulkan,fusion,autotune,train",
    "cuda,fusion,train,ddp",
];

fn main() -> Result<()> {
    let shell = Shell::new()?;
    match Cli::parse().chore {
        Chore::Validate => {
            lint(&shell)?;
            test(&shell)?;
            vulkan(&shell)?;
            resume_check::run(&shell, &resume_check::Options::default())?;
            nvrtc::run(&shell, &nvrtc::Options::default())?;
            features(&shell)
        }
        Chore::Lint => lint(&shell),
        Chore::Features => features(&shell),
        Chore::Test => test(&shell),
        Chore::Vulkan => vulkan(&shell),
        Chore::Nvrtc(options) => nvrtc::run(&shell, &options),
        Chore::ResumeCheck(options) => resume_check::run(&shell, &options),
        Chore::GpuBundle => gpu_bundle::gpu_bundle(&shell),
    }
}

fn target_directory(shell: &Shell) -> Result<PathBuf> {
    let target = match std::env::var_os("CARGO_TARGET_DIR") {
        Some(path) if !path.is_empty() => PathBuf::from(path),
        _ => Path::new(env!("CARGO_MANIFEST_DIR"))
            .parent()
            .context("xtask lies in the workspace")?
            .join("target"),
    };
    Ok(shell.current_dir().join(target))
}

fn lint(shell: &Shell) -> Result<()> {
    cmd!(shell, "cargo fmt --all --check").run()?;
    cmd!(
        shell,
        "cargo clippy --workspace --all-targets -- --deny warnings"
    )
    .run()?;
    let _deny = shell.push_env("RUSTDOCFLAGS", "--deny warnings");
    cmd!(shell, "cargo doc --workspace --no-deps").run()?;
    Ok(())
}

fn test(shell: &Shell) -> Result<()> {
    cmd!(shell, "cargo test --workspace").run()?;
    cmd!(shell, "cargo test --workspace --release").run()?;
    // By itself: with it, Burn does not train on Flex, as all other tests do.
    cmd!(
        shell,
        "cargo test --package burn-amp --features train,ddp --test multi_device"
    )
    .run()?;
    Ok(())
}

/// Naive products: on a CPU the tiled ones take longer to compile than these take to run. They have
/// tests of their own in burn-amp-kernels, which are part of all tests.
fn vulkan(shell: &Shell) -> Result<()> {
    let features = [
        "burn-amp/flex",
        "burn-amp/vulkan",
        "burn-amp/fusion",
        "char-gpt/flex",
        "char-gpt/vulkan",
    ]
    .join(",");
    let _naive = shell.push_env("BURN_AMP_MATMUL", "naive");
    cmd!(
        shell,
        "cargo test --package burn-amp --package char-gpt --no-default-features
            --features {features} --test vulkan --test vulkan_launches"
    )
    .run()?;
    Ok(())
}

fn features(shell: &Shell) -> Result<()> {
    for features in FEATURES {
        cmd!(
            shell,
            "cargo check --package burn-amp --no-default-features --features {features}"
        )
        .run()?;
    }
    for device in ["cuda", "vulkan"] {
        cmd!(
            shell,
            "cargo check --package burn-amp-gpu --features {device}"
        )
        .run()?;
    }
    Ok(())
}
