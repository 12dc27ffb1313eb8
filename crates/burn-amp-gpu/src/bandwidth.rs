//! Kernels that are bound by memory, next to a copy of as many bytes.

use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use burn_amp_kernels::rows::{
    layer_norm_backward, layer_norm_forward, log_softmax_backward, log_softmax_forward,
    softmax_backward, softmax_forward,
};
use burn_amp_kernels::unscale::{check, unscale_and_check};
use burn_amp_kernels::{DeviceTensor, FloatType, cast};
use cubecl::prelude::*;

use crate::budget::Budget;
use crate::check::{attempt, name};
use crate::device::{Gpu, Runtime};
use crate::records::{self, Bandwidth};
use crate::report::{failed, no_time};
use crate::shapes::{VOCABULARY, gpt2_parameters};
use crate::stats::gb_per_second;
use crate::timing::{Effort, time};

/// A kernel takes less than this, compilation included.
const A_KERNEL: Duration = Duration::from_secs(4);

struct Bench<'a> {
    gpu: &'a Gpu,
    effort: Effort,
    quick: bool,
    budget: Budget,
    out: Option<&'a Path>,
    records: Vec<Bandwidth>,
    skipped: usize,
    left_out: Vec<String>,
}

/// Times the kernels that are bound by memory, and writes what it has after each.
///
/// Returns the records, and what was left out: the kernels that failed, and how many there was no time for.
///
/// # Errors
///
/// When a kernel that others need the results of fails, or the file cannot be written.
pub fn run(
    gpu: &Gpu,
    quick: bool,
    budget: Budget,
    out: Option<&Path>,
) -> Result<(Vec<Bandwidth>, Vec<String>)> {
    let mut bench = Bench {
        gpu,
        effort: if quick { Effort::QUICK } else { Effort::FULL },
        quick,
        budget,
        out,
        records: Vec::new(),
        skipped: 0,
        left_out: Vec::new(),
    };
    let halves = gpu.halves();
    let shrink = |len: usize| if quick { len.div_ceil(16_384) } else { len };
    let gpt2: Vec<usize> = gpt2_parameters().into_iter().map(shrink).collect();
    let large = vec![shrink(1 << 28)];

    for lengths in [&gpt2, &large] {
        bench.unscale(lengths, FloatType::F32)?;
        bench.check(lengths, FloatType::F32)?;
        for half in halves.iter().take(1) {
            bench.unscale(lengths, *half)?;
            bench.check(lengths, *half)?;
        }
    }
    let rows: &[[usize; 2]] = if quick {
        &[[64, 96]]
    } else {
        &[[8192, 768], [65_536, 768], [16_384, 4096]]
    };
    let scores = if quick { [64, 32] } else { [98_304, 1024] };
    let logits = if quick { [8, 77] } else { [8192, VOCABULARY] };
    for half in &halves {
        bench.cast(large[0], *half)?;
        for shape in rows {
            bench.layer_norm(*shape, *half)?;
        }
        bench.softmax(scores, *half)?;
        bench.log_softmax(logits, *half)?;
    }
    bench.left_out.extend(no_time(bench.skipped, "kernels"));
    Ok((bench.records, bench.left_out))
}

impl Bench<'_> {
    /// `bytes` have to be read and written at the least.
    fn add(
        &mut self,
        [kernel, types]: [&str; 2],
        shape: String,
        bytes: usize,
        launch: impl FnMut() -> Result<()>,
    ) -> Result<()> {
        if !self.budget.has(A_KERNEL) && !self.quick {
            self.skipped += 1;
            return Ok(());
        }
        let timed = attempt(self.gpu, || {
            Ok((self.copy(bytes)?, time(self.gpu, self.effort, launch)?))
        });
        let (copy, time) = match timed {
            Ok(times) => times,
            Err(error) => {
                let kernel = format!("{kernel} of {types}, {shape}");
                self.left_out.push(failed(&kernel, &error));
                return Ok(());
            }
        };
        self.records.push(Bandwidth {
            kernel: kernel.to_owned(),
            types: types.to_owned(),
            shape,
            bytes: bytes as u64,
            micros: time.as_secs_f64() * 1e6,
            gb_per_s: gb_per_second(bytes as u64, time),
            of_copy: copy.as_secs_f64() / time.as_secs_f64(),
        });
        match self.out {
            Some(out) => records::write(out, &self.records),
            None => Ok(()),
        }
    }

    /// The time of a copy that reads and writes `bytes` in all.
    fn copy(&self, bytes: usize) -> Result<Duration> {
        let gpu = self.gpu;
        // Vectors of four f32 values, half of the bytes to read and half to write.
        let values = (bytes / 8).next_multiple_of(4).max(4);
        let source = gpu.filled(&[values], FloatType::F32);
        let target = DeviceTensor::empty(&gpu.client, [values], FloatType::F32);
        time(gpu, self.effort, || {
            launch_copy(gpu, &source, &target);
            Ok(())
        })
    }

    fn gradients(&self, lengths: &[usize], dtype: FloatType) -> (Vec<DeviceTensor>, String) {
        let filled = lengths.iter().map(|len| self.gpu.filled(&[*len], dtype));
        let shape = match lengths {
            [len] => format!("one of {len}"),
            _ => format!("{} of GPT-2", lengths.len()),
        };
        (filled.collect(), shape)
    }

    fn unscale(&mut self, lengths: &[usize], dtype: FloatType) -> Result<()> {
        let gpu = self.gpu;
        let (mut grads, shape) = self.gradients(lengths, dtype);
        // A factor of one leaves f32 gradients as they are, however often they are unscaled.
        let inv = gpu.scalar(1.0);
        let values: usize = lengths.iter().sum();
        let types = if dtype == FloatType::F32 {
            "f32 in place".to_owned()
        } else {
            format!("{} to f32", name(dtype))
        };
        let launch = || {
            if dtype == FloatType::F32 {
                unscale_and_check(&gpu.client, &mut grads, &inv)?;
            } else {
                unscale_and_check(&gpu.client, &mut grads.clone(), &inv)?;
            }
            Ok(())
        };
        let bytes = values * (dtype.size() + 4);
        self.add(["unscale_and_check", &types], shape, bytes, launch)
    }

    fn check(&mut self, lengths: &[usize], dtype: FloatType) -> Result<()> {
        let gpu = self.gpu;
        let (grads, shape) = self.gradients(lengths, dtype);
        let bytes = lengths.iter().sum::<usize>() * dtype.size();
        self.add(["check", name(dtype)], shape, bytes, || {
            check(&gpu.client, &grads)?;
            Ok(())
        })
    }

    fn cast(&mut self, len: usize, half: FloatType) -> Result<()> {
        let gpu = self.gpu;
        let tensor = gpu.filled(&[len], FloatType::F32);
        let types = format!("f32 to {}", name(half));
        self.add(["cast", &types], format!("{len}"), 6 * len, || {
            cast(&gpu.client, &tensor, half, false)?;
            Ok(())
        })
    }

    fn layer_norm(&mut self, shape: [usize; 2], half: FloatType) -> Result<()> {
        let gpu = self.gpu;
        let client = &gpu.client;
        let [x, grad] = [(); 2].map(|()| gpu.filled(&shape, half));
        let [gamma, beta] = [(); 2].map(|()| gpu.filled(&[shape[1]], FloatType::F32));
        let text = format!("{} × {}", shape[0], shape[1]);
        let values = shape[0] * shape[1];
        let forward = || layer_norm_forward(client, &x, &gamma, Some(&beta), 1e-5, half);
        let kernel = ["layer norm", name(half)];
        self.add(kernel, text.clone(), 4 * values, || {
            forward()?;
            Ok(())
        })?;
        let (_, moments) = forward()?;
        let kernel = ["layer norm, backward", name(half)];
        self.add(kernel, text, 6 * values, || {
            layer_norm_backward(client, &x, &gamma, &moments, &grad)?;
            Ok(())
        })
    }

    fn softmax(&mut self, shape: [usize; 2], half: FloatType) -> Result<()> {
        let gpu = self.gpu;
        let client = &gpu.client;
        let [x, grad] = [(); 2].map(|()| gpu.filled(&shape, half));
        let text = format!("{} × {}", shape[0], shape[1]);
        let values = shape[0] * shape[1];
        self.add(["softmax", name(half)], text.clone(), 4 * values, || {
            softmax_forward(client, &x, half)?;
            Ok(())
        })?;
        let output = softmax_forward(client, &x, half)?;
        let kernel = ["softmax, backward", name(half)];
        self.add(kernel, text, 6 * values, || {
            softmax_backward(client, &output, &grad, half)?;
            Ok(())
        })
    }

    /// Half logits, f32 logarithms and gradients: a loss.
    fn log_softmax(&mut self, shape: [usize; 2], half: FloatType) -> Result<()> {
        let gpu = self.gpu;
        let client = &gpu.client;
        let x = gpu.filled(&shape, half);
        let grad = gpu.filled(&shape, FloatType::F32);
        let text = format!("{} × {}", shape[0], shape[1]);
        let values = shape[0] * shape[1];
        let types = format!("{} and f32", name(half));
        self.add(["log-softmax", &types], text.clone(), 6 * values, || {
            log_softmax_forward(client, &x, FloatType::F32)?;
            Ok(())
        })?;
        let (_, sums) = log_softmax_forward(client, &x, FloatType::F32)?;
        let kernel = ["log-softmax, backward", &types];
        self.add(kernel, text, 8 * values, || {
            log_softmax_backward(client, &x, &sums, &grad)?;
            Ok(())
        })
    }
}

fn launch_copy(gpu: &Gpu, source: &DeviceTensor, target: &DeviceTensor) {
    const UNITS: u32 = 256;
    let vectors = source.len() / 4;
    let cubes = vectors.div_ceil(UNITS as usize);
    let y = cubes.div_ceil(65_535);
    // SAFETY: both buffers have as many values as the source, and units beyond them do nothing.
    #[allow(unsafe_code)]
    unsafe {
        copy_vectors::launch_unchecked::<Runtime>(
            &gpu.client,
            CubeCount::Static(cubes.div_ceil(y) as u32, y as u32, 1),
            CubeDim::new_1d(UNITS),
            4,
            ArrayArg::from_raw_parts(source.handle.clone(), source.len()),
            ArrayArg::from_raw_parts(target.handle.clone(), source.len()),
        );
    }
}

#[cube(launch_unchecked)]
fn copy_vectors<N: Size>(source: &Array<Vector<f32, N>>, target: &mut Array<Vector<f32, N>>) {
    if ABSOLUTE_POS < target.len() {
        target[ABSOLUTE_POS] = source[ABSOLUTE_POS];
    }
}
