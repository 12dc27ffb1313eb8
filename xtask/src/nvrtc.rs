//! Compiles the kernels' CUDA where there is no CUDA: NVRTC and its headers come as Python wheels.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use clap::Args;
use xshell::{Shell, cmd};

/// One release of CUDA, in four packages that unpack into one tree.
const WHEELS: &[(&str, &str)] = &[
    ("nvidia-cuda-nvrtc", "13.0.88"),
    ("nvidia-cuda-runtime", "13.0.96"),
    ("nvidia-cuda-crt", "13.0.88"),
    ("nvidia-cuda-cccl", "13.0.85"),
];

/// The name that pip takes to include those for an older glibc, as `manylinux_2_17_x86_64` does not.
const PLATFORM: &str = "manylinux2014_x86_64";

/// What is passed on.
#[derive(Args, Default)]
pub struct Options {
    /// Options of burn-amp-nvrtc, such as `--arch 90` or `--csv FILE`.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    pass: Vec<String>,
}

/// Fetches NVRTC once and runs burn-amp-nvrtc with it.
pub fn run(shell: &Shell, options: &Options) -> Result<()> {
    ensure!(
        cfg!(all(target_os = "linux", target_arch = "x86_64")),
        "NVRTC comes as a Python wheel for Linux on x86_64 only"
    );
    let target = crate::target_directory(shell)?;
    let cuda = fetch(shell, &target.join("nvrtc"))?;
    let library = cuda.join("lib");
    // NVRTC opens its second library by the bare name.
    let path = match std::env::var_os("LD_LIBRARY_PATH") {
        Some(path) if !path.is_empty() => {
            let others = std::env::split_paths(&path);
            std::env::join_paths(std::iter::once(library).chain(others))?
        }
        _ => library.into_os_string(),
    };
    let _path = shell.push_env("LD_LIBRARY_PATH", path);
    let pass = &options.pass;
    cmd!(
        shell,
        "cargo run --quiet --release --package burn-amp-nvrtc -- --nvrtc {cuda} {pass...}"
    )
    .run()?;
    Ok(())
}

/// The folder with `include` and `lib`.
fn fetch(shell: &Shell, cache: &Path) -> Result<PathBuf> {
    // A folder of its own for each set of versions: a change of one is not mixed with what is there.
    let versions: Vec<_> = WHEELS.iter().map(|(_, version)| *version).collect();
    let folder = cache.join(versions.join("_"));
    let unpacked = folder.join("unpacked");
    let cuda = folder.join("nvidia/cu13");
    if unpacked.is_file() {
        return Ok(cuda);
    }
    // What an interrupted run left.
    shell.remove_path(&folder)?;
    let wheels = folder.join("wheels");
    shell.create_dir(&wheels)?;
    let quiet = ["--quiet", "--disable-pip-version-check", "--no-input"];
    for (name, version) in WHEELS {
        let requirement = format!("{name}=={version}");
        let download = cmd!(
            shell,
            "python3 -m pip download {quiet...} --no-deps --only-binary=:all:
             --platform {PLATFORM} --dest {wheels} {requirement}"
        );
        download.run().with_context(|| {
            format!("cannot fetch the Python package {requirement}, a part of NVRTC")
        })?;
    }
    // All at once: the packages share folders, and a second call would put its own in their place.
    let files = shell.read_dir(&wheels)?;
    let install = cmd!(
        shell,
        "python3 -m pip install {quiet...} --no-index --no-deps --no-compile
         --platform {PLATFORM} --only-binary=:all: --target {folder} {files...}"
    );
    install
        .run()
        .context("cannot unpack the Python packages of NVRTC")?;
    shell.remove_path(&wheels)?;
    for part in [
        "lib/libnvrtc.so.13",
        "include/cuda_fp16.h",
        "include/crt",
        "include/cccl",
    ] {
        ensure!(
            shell.path_exists(cuda.join(part)),
            "the packages for NVRTC lack {part}"
        );
    }
    // Last, so that an interrupted download is not taken for a complete one.
    shell.write_file(&unpacked, "")?;
    Ok(cuda)
}
