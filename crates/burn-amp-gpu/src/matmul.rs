//! Products by our kernels and by Burn's.

use std::collections::HashMap;
use std::path::Path;
use std::time::Duration;

use anyhow::{Result, anyhow};
use burn::tensor::{DType, Tensor};
use burn_amp_kernels::matmul::{Product, Routine, Strategy, Tile, matmul};
use burn_amp_kernels::{DeviceTensor, FloatType};

use crate::budget::Budget;
use crate::check::{attempt, name};
use crate::device::{Gpu, Unfused};
use crate::records::{self, Matmul};
use crate::report::{AUTO, BURN_F32, BURN_HALF, CAST_THEN, FUSED, failed, no_time};
use crate::shapes::{self, Kind, Shape};
use crate::stats::tflops;
use crate::timing::{Effort, time};

/// A way takes less than this, compilation and tuning included.
const A_WAY: Duration = Duration::from_secs(12);

/// How many of the routines that were fastest for a family are tried for its other shapes.
const KEPT: usize = 3;

/// The routines that cast while they load: those that the tuner tries.
pub fn fused_routines() -> Vec<Routine> {
    let mut routines = vec![Routine::Unit];
    for tile in [Tile::Mma, Tile::Cmma] {
        routines.extend([
            Routine::Simple {
                tile,
                multi_rows: true,
            },
            Routine::Simple {
                tile,
                multi_rows: false,
            },
            Routine::Ordered { tile, rows: 8 },
            Routine::DoubleBuffered {
                tile,
                specialized: false,
            },
        ]);
    }
    routines
}

/// The routines that follow a cast: those that the tuner tries.
pub fn routines_after_cast() -> Vec<Routine> {
    let of = |tile| {
        [
            Routine::Ordered { tile, rows: 8 },
            Routine::DoubleBuffered {
                tile,
                specialized: false,
            },
            Routine::Tma {
                tile,
                multi_rows: true,
            },
            Routine::SpecializedTma { tile },
        ]
    };
    [Tile::Mma, Tile::Cmma].into_iter().flat_map(of).collect()
}

/// What is timed, in this order.
#[derive(Debug, Clone, Copy)]
struct Job {
    shape: Shape,
    compute: FloatType,
    way: &'static str,
}

/// Times products, and writes what it has after each.
///
/// Returns the records, and what was left out: the products that failed, and how many there was no time
/// for.
///
/// # Errors
///
/// When the file cannot be written.
pub fn run(
    gpu: &Gpu,
    quick: bool,
    budget: Budget,
    out: Option<&Path>,
) -> Result<(Vec<Matmul>, Vec<String>)> {
    let mut bench = Bench {
        gpu,
        quick,
        fastest: HashMap::new(),
    };
    let shapes = if quick {
        shapes::quick()
    } else {
        shapes::all()
    };
    let jobs = jobs(&shapes, &gpu.halves(), quick);
    let mut records = Vec::new();
    let mut left_out = Vec::new();
    let mut skipped = 0;
    for job in &jobs {
        if !budget.has(A_WAY) && !quick {
            skipped += 1;
            continue;
        }
        match attempt(gpu, || bench.measure(job)) {
            Ok(record) => records.extend(record),
            Err(error) => left_out.push(failed(&format!("{} of {:?}", job.way, job.shape), &error)),
        }
        if let Some(out) = out {
            records::write(out, &records)?;
        }
    }
    left_out.extend(no_time(skipped, "times of products"));
    Ok((records, left_out))
}

/// The most telling first: a budget cuts the end off.
fn jobs(shapes: &[Shape], halves: &[FloatType], quick: bool) -> Vec<Job> {
    let mut jobs = Vec::new();
    let mut add = |first: bool, compute: FloatType, ways: &[&'static str]| {
        for shape in shapes.iter().filter(|shape| shape.first == first) {
            for way in ways {
                jobs.push(Job {
                    shape: *shape,
                    compute,
                    way,
                });
            }
        }
    };
    let Some((&half, others)) = halves.split_first() else {
        return jobs;
    };
    // Where nothing is tuned and a kernel takes long to compile, a look at each is enough.
    add(true, half, &[FUSED, CAST_THEN, BURN_HALF, BURN_F32]);
    let tunes = !quick || std::env::var_os("BURN_AMP_MATMUL").is_some();
    if tunes {
        add(true, half, &[AUTO]);
    }
    add(false, half, &[FUSED, CAST_THEN]);
    for other in others {
        add(true, *other, &[FUSED, CAST_THEN, BURN_HALF]);
    }
    add(false, half, &[BURN_HALF, BURN_F32, AUTO]);
    for other in others {
        add(false, *other, &[FUSED, CAST_THEN]);
        add(true, *other, &[AUTO]);
    }
    jobs
}

struct Bench<'a> {
    gpu: &'a Gpu,
    quick: bool,
    /// The routines that did best, by way, family and type.
    fastest: HashMap<(&'static str, &'static str, FloatType), Vec<Strategy>>,
}

struct Timed {
    time: Duration,
    routine: String,
    tf32: Option<bool>,
}

impl Bench<'_> {
    /// Nothing where the device has no such routine.
    fn measure(&mut self, job: &Job) -> Result<Option<Matmul>> {
        let timed = match job.way {
            FUSED => self.best(job, candidates(self.quick, true))?,
            CAST_THEN => self.best(job, candidates(self.quick, false))?,
            AUTO => {
                let product = self.product(job);
                Some(self.with(&product, Strategy::Auto, self.effort())?)
            }
            BURN_HALF => Some(self.burn(job, Some(job.compute))?),
            BURN_F32 => Some(self.burn(job, None)?),
            other => return Err(anyhow!("no way to multiply is called {other}")),
        };
        let [m, k, n] = job.shape.dims;
        let compute = if job.way == BURN_F32 {
            FloatType::F32
        } else {
            job.compute
        };
        Ok(timed.map(|timed| Matmul {
            group: job.shape.group.to_owned(),
            product: job.shape.kind.name().to_owned(),
            compute: name(compute).to_owned(),
            m,
            k,
            n,
            way: job.way.to_owned(),
            routine: timed.routine,
            micros: timed.time.as_secs_f64() * 1e6,
            tflops: tflops(job.shape.dims, timed.time),
            tf32: timed.tf32,
        }))
    }

    fn effort(&self) -> Effort {
        if self.quick {
            Effort::QUICK
        } else {
            Effort::FULL
        }
    }

    fn product(&self, job: &Job) -> Product {
        let [m, k, n] = job.shape.dims;
        let gpu = self.gpu;
        let (lhs, rhs, out) = match job.shape.kind {
            Kind::Forward => (
                gpu.filled(&[m, k], job.compute),
                gpu.filled(&[k, n], FloatType::F32),
                job.compute,
            ),
            Kind::WeightGradient => (
                gpu.filled(&[k, m], job.compute).transposed(),
                gpu.filled(&[k, n], job.compute),
                FloatType::F32,
            ),
        };
        Product {
            lhs,
            rhs,
            bias: None,
            compute: job.compute,
            out,
        }
    }

    fn with(&self, product: &Product, strategy: Strategy, effort: Effort) -> Result<Timed> {
        let time = time(self.gpu, effort, || {
            matmul(&self.gpu.client, product, strategy)?;
            Ok(())
        })?;
        Ok(Timed {
            time,
            routine: strategy.to_string(),
            tf32: None,
        })
    }

    /// Times all candidates for the first shape of a family, and the best of them for the others.
    fn best(&mut self, job: &Job, all: Vec<Strategy>) -> Result<Option<Timed>> {
        let product = self.product(job);
        let key = (job.way, job.shape.group, job.compute);
        let known = self.fastest.get(&key);
        let candidates = known.cloned().unwrap_or(all);
        let rough = if self.quick {
            Effort::QUICK
        } else {
            Effort::ROUGH
        };
        let mut timed: Vec<(Duration, Strategy)> = candidates
            .into_iter()
            .filter_map(|strategy| {
                // A routine that the device does not offer, or that fails on it, is none.
                let timed = attempt(self.gpu, || self.with(&product, strategy, rough)).ok()?;
                Some((timed.time, strategy))
            })
            .collect();
        timed.sort_by_key(|(time, _)| *time);
        let Some(&(_, fastest)) = timed.first() else {
            return Ok(None);
        };
        let kept = timed.iter().take(KEPT).map(|(_, strategy)| *strategy);
        self.fastest.entry(key).or_insert_with(|| kept.collect());
        self.with(&product, fastest, self.effort()).map(Some)
    }

    /// Burn's own product without fusion: operands in f32, or the activations in a half type and the
    /// weights cast to it each time.
    fn burn(&self, job: &Job, half: Option<FloatType>) -> Result<Timed> {
        let [m, k, n] = job.shape.dims;
        let dtype = match half {
            Some(FloatType::F16) => DType::F16,
            Some(FloatType::BF16) => DType::BF16,
            _ => DType::F32,
        };
        let filled = |shape: &[usize], half: Option<FloatType>| {
            let tensor = self.gpu.filled(shape, half.unwrap_or(FloatType::F32));
            self.as_burn(tensor)
        };
        let is_forward = job.shape.kind == Kind::Forward;
        let lhs = if is_forward {
            filled(&[m, k], half)
        } else {
            filled(&[k, m], half).transpose()
        };
        let rhs = filled(&[k, n], if is_forward { None } else { half });
        let time = time(self.gpu, self.effort(), || {
            let product = if is_forward {
                lhs.clone().matmul(rhs.clone().cast(dtype))
            } else {
                lhs.clone().matmul(rhs.clone()).cast(DType::F32)
            };
            drop(product);
            Ok(())
        })?;
        let tf32 = match half {
            None => Some(self.is_rounded_to_tf32(job)?),
            Some(_) => None,
        };
        Ok(Timed {
            time,
            routine: String::new(),
            tf32,
        })
    }

    fn as_burn(&self, tensor: DeviceTensor) -> Tensor<Unfused, 2> {
        let dtype = match tensor.dtype {
            FloatType::F32 => DType::F32,
            FloatType::F16 => DType::F16,
            FloatType::BF16 => DType::BF16,
        };
        let primitive = burn_cubecl::tensor::CubeTensor::new_contiguous(
            self.gpu.client.clone(),
            self.gpu.device.clone(),
            tensor.shape,
            tensor.handle,
            dtype,
        );
        Tensor::from_primitive(burn::tensor::TensorPrimitive::Float(primitive))
    }

    /// 1 + 2⁻¹² needs twelve bits behind the point; TF32 has ten.
    fn is_rounded_to_tf32(&self, job: &Job) -> Result<bool> {
        let [m, k, n] = job.shape.dims;
        let device = &self.gpu.device;
        let exact = 1.0f32 + 2f32.powi(-12);
        let mark = |rows, columns, value: f32| {
            let value = Tensor::<Unfused, 2>::from_floats([[value]], device);
            Tensor::zeros([rows, columns], device).slice_assign([0..1, 0..1], value)
        };
        let lhs = match job.shape.kind {
            Kind::Forward => mark(m, k, exact),
            Kind::WeightGradient => mark(k, m, exact).transpose(),
        };
        let product = lhs.matmul(mark(k, n, 1.0));
        let value = product.slice([0..1, 0..1]).into_data();
        let value = value.iter::<f32>().next();
        let value = value.ok_or_else(|| anyhow!("a product without values"))?;
        Ok(value != exact)
    }
}

/// Those of the tuner, or one that is compiled soon.
fn candidates(quick: bool, fused: bool) -> Vec<Strategy> {
    match (quick, fused) {
        (true, true) => vec![Strategy::Naive],
        (true, false) => vec![Strategy::CastThen(Routine::Unit)],
        (false, true) => fused_routines().into_iter().map(Strategy::Fused).collect(),
        (false, false) => routines_after_cast()
            .into_iter()
            .map(Strategy::CastThen)
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn should_measure_what_counts_first_and_everything_once() {
        let shapes = shapes::all();
        let jobs = jobs(&shapes, &[FloatType::BF16, FloatType::F16], false);
        assert!(jobs[0].shape.first && jobs[0].compute == FloatType::BF16);
        let half: Vec<_> = jobs
            .iter()
            .filter(|job| job.compute == FloatType::BF16)
            .collect();
        assert_eq!(half.len(), 5 * shapes.len());
        for (index, job) in jobs.iter().enumerate() {
            let again = jobs[index + 1..].iter().find(|other| {
                other.way == job.way && other.compute == job.compute && other.shape == job.shape
            });
            assert!(again.is_none(), "{job:?}");
        }
    }

    #[test]
    fn should_measure_nothing_without_a_half_type() {
        assert!(jobs(&shapes::all(), &[], false).is_empty());
    }
}
