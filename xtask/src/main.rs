//! The project's chores: `cargo xtask validate` is the one to remember.

mod gpu_bundle;

use anyhow::Result;
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
    /// Everything that CI runs: format, lints, docs, features, tests in debug and release.
    Validate,
    /// Formatting, clippy and rustdoc, warnings denied.
    Lint,
    /// Type-checks burn-amp with each feature alone, and with those that belong together.
    Features,
    /// All tests, in debug and in release: some of Burn's checks exist in debug builds only.
    Test,
    /// The program that proves burn-amp on a GPU, with what it needs there, as one archive.
    GpuBundle,
}

/// Each alone, none, and together. The GPU backends need no toolkit to compile.
const FEATURES: &[&str] = &[
    "",
    "flex",
    "ndarray",
    "train",
    "fusion",
    "cuda",
    "vulkan",
    "cuda,fusion",
    "vulkan,fusion",
    "flex,ndarray,cuda,vulkan,fusion,train",
];

fn main() -> Result<()> {
    let shell = Shell::new()?;
    match Cli::parse().chore {
        Chore::Validate => {
            lint(&shell)?;
            test(&shell)?;
            features(&shell)
        }
        Chore::Lint => lint(&shell),
        Chore::Features => features(&shell),
        Chore::Test => test(&shell),
        Chore::GpuBundle => gpu_bundle::gpu_bundle(&shell),
    }
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
