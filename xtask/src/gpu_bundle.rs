//! Packs what proves burn-amp on a GPU, so that the machine with the GPU needs no toolchain.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use xshell::{Shell, cmd};

/// GPU time is often paid by the minute, and what is carried to it is limited.
const LARGEST: u64 = 60_000_000;

/// The version of CUDA's API whose symbols the program looks up: older than the driver is fine, newer is
/// not.
const CUDA: &str = "13000";

/// What goes beside the program.
const FILES: [&str; 3] = ["run.sh", "torch_reference.py", "README.txt"];

/// Builds the program for CUDA and packs it into `gpu-bundle.tar.gz` in the target directory.
pub fn gpu_bundle(shell: &Shell) -> Result<()> {
    let target = crate::target_directory(shell)?;
    let bundle = target.join("gpu-bundle");
    let archive = target.join("gpu-bundle.tar.gz");
    {
        let _version = shell.push_env("CUDARC_CUDA_VERSION", CUDA);
        cmd!(
            shell,
            "cargo build --profile bundle --package burn-amp-gpu --features cuda"
        )
        .run()?;
    }
    if bundle.exists() {
        fs::remove_dir_all(&bundle)?;
    }
    fs::create_dir_all(&bundle)?;
    let program = target.join("bundle/burn-amp-gpu");
    copy(&program, &bundle.join("burn-amp-gpu"))?;
    for file in FILES {
        copy(
            &Path::new("crates/burn-amp-gpu").join(file),
            &bundle.join(file),
        )?;
    }
    cmd!(
        shell,
        "tar --create --gzip --file {archive} --directory {target} gpu-bundle"
    )
    .run()?;

    let binary = report(&program)?;
    let packed = report(&archive)?;
    ensure!(
        packed <= LARGEST,
        "the archive has {packed} bytes, of {LARGEST} at most (the program has {binary})"
    );
    Ok(())
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::copy(from, to)
        .with_context(|| format!("cannot copy {} to {}", from.display(), to.display()))?;
    Ok(())
}

/// Prints a file's size and returns it.
#[allow(clippy::print_stdout)] // A chore's result.
fn report(path: &Path) -> Result<u64> {
    let size = fs::metadata(path)
        .with_context(|| format!("cannot find {}", path.display()))?
        .len();
    println!("{}: {:.1} MB", path.display(), size as f64 / 1e6);
    Ok(size)
}
