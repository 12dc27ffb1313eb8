//! What is measured, a record each, as it is written to CSV files and read back.

use std::path::Path;

use anyhow::{Context, Result};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// A kind of record, and the file that its records are in.
pub trait Record: Serialize + DeserializeOwned {
    /// The file's name in the output directory.
    const FILE: &'static str;
}

/// How a kernel compared with its reference.
#[derive(Debug, Clone, PartialEq, Serialize, serde::Deserialize)]
pub struct Check {
    /// The kernel, or the way to multiply.
    pub kernel: String,
    /// Types and shapes.
    pub case: String,
    /// `ok`, `FAILED`, `not offered` or `skipped`.
    pub outcome: Outcome,
    /// The largest error over the tolerance.
    pub error: Option<f64>,
    /// Why, where it is not `ok`.
    pub reason: String,
}

/// What came of a comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, serde::Deserialize)]
pub enum Outcome {
    /// Within the tolerance.
    #[serde(rename = "ok")]
    Ok,
    /// Off, or an error.
    #[serde(rename = "FAILED")]
    Failed,
    /// The device or the routine does not run such a product, and says so.
    #[serde(rename = "not offered")]
    NotOffered,
    /// No time was left.
    #[serde(rename = "skipped")]
    Skipped,
}

impl Record for Check {
    const FILE: &'static str = "check.csv";
}

/// The time of a product.
#[derive(Debug, Clone, PartialEq, Serialize, serde::Deserialize)]
pub struct Matmul {
    /// The family of shapes.
    pub group: String,
    /// `forward`, or `weight gradient`.
    pub product: String,
    /// The type that is multiplied.
    pub compute: String,
    /// Rows.
    pub m: usize,
    /// Length of the sums.
    pub k: usize,
    /// Columns.
    pub n: usize,
    /// Who multiplies: see [`crate::report::WAYS`].
    pub way: String,
    /// By which routine, where that was chosen.
    pub routine: String,
    /// Median time.
    pub micros: f64,
    /// 10¹² operations a second.
    pub tflops: f64,
    /// Whether an f32 product was rounded to TF32 or less; unknown where it was not looked at.
    pub tf32: Option<bool>,
}

impl Record for Matmul {
    const FILE: &'static str = "matmul.csv";
}

/// The bytes that a kernel moves a second.
#[derive(Debug, Clone, PartialEq, Serialize, serde::Deserialize)]
pub struct Bandwidth {
    /// The kernel.
    pub kernel: String,
    /// Types.
    pub types: String,
    /// Shape, or number of tensors.
    pub shape: String,
    /// What has to be read and written at the least.
    pub bytes: u64,
    /// Median time.
    pub micros: f64,
    /// 10⁹ bytes a second.
    pub gb_per_s: f64,
    /// That over the rate of a copy of as many bytes.
    pub of_copy: f64,
}

impl Record for Bandwidth {
    const FILE: &'static str = "bandwidth.csv";
}

/// A training run.
#[derive(Debug, Clone, PartialEq, Serialize, serde::Deserialize)]
pub struct Training {
    /// `Burn`, `burn-amp` or `PyTorch`.
    pub framework: String,
    /// `f32`, `bf16` or `f16`.
    pub mode: String,
    /// How a block attends.
    pub attention: String,
    /// Sizes, as a name.
    pub model: String,
    /// Median time of a step.
    pub step_ms: f64,
    /// Tokens a second.
    pub tokens_per_s: f64,
    /// In use between forward and backward, over what was in use before.
    pub kept_bytes: u64,
    /// The most in use at once; without a counter in the allocator, after forward, backward and update.
    pub peak_bytes: u64,
    /// What the allocator holds.
    pub reserved_bytes: u64,
    /// Steps in all.
    pub steps: usize,
    /// Steps that were skipped for an overflow.
    pub skipped: usize,
    /// The first loss.
    pub first_loss: f64,
    /// The last loss.
    pub last_loss: f64,
}

impl Record for Training {
    const FILE: &'static str = "train.csv";
}

/// Writes records into the directory, over those that were there.
///
/// # Errors
///
/// When the file cannot be written.
pub fn write<R: Record>(directory: &Path, records: &[R]) -> Result<()> {
    std::fs::create_dir_all(directory)
        .with_context(|| format!("cannot create {}", directory.display()))?;
    let path = directory.join(R::FILE);
    let mut writer = csv::Writer::from_path(&path)
        .with_context(|| format!("cannot write {}", path.display()))?;
    for record in records {
        writer.serialize(record)?;
    }
    writer.flush()?;
    Ok(())
}

/// Reads the records of the directory, and after them those that PyTorch left there in a file of the
/// same name after `torch_`. Where there are no files there are no records.
///
/// # Errors
///
/// When a file is there and has other columns or values.
pub fn read<R: Record>(directory: &Path) -> Result<Vec<R>> {
    let mut records = Vec::new();
    for name in [R::FILE.to_owned(), format!("torch_{}", R::FILE)] {
        let path = directory.join(name);
        if !path.exists() {
            continue;
        }
        let mut reader = csv::Reader::from_path(&path)
            .with_context(|| format!("cannot read {}", path.display()))?;
        for record in reader.deserialize() {
            records.push(record.with_context(|| format!("cannot read {}", path.display()))?);
        }
    }
    Ok(records)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(outcome: Outcome, error: Option<f64>) -> Check {
        Check {
            kernel: "cast".into(),
            case: "f32 to f16, [3]".into(),
            outcome,
            error,
            reason: "a, \"b\"".into(),
        }
    }

    #[test]
    fn should_read_what_it_wrote() {
        let directory = tempfile::tempdir().unwrap();
        let records = [
            check(Outcome::Ok, Some(0.25)),
            check(Outcome::NotOffered, None),
            check(Outcome::Failed, Some(f64::INFINITY)),
        ];
        write(directory.path(), &records).unwrap();
        assert_eq!(read::<Check>(directory.path()).unwrap(), records);
    }

    #[test]
    fn should_add_the_records_of_pytorch() {
        let directory = tempfile::tempdir().unwrap();
        let text = "group,product,compute,m,k,n,way,routine,micros,tflops,tf32\n\
                    square,forward,bf16,2,3,4,PyTorch,,1.5,0.25,\n\
                    square,forward,f32,2,3,4,PyTorch,,1.5,0.25,true\n";
        std::fs::write(directory.path().join("torch_matmul.csv"), text).unwrap();
        let records = read::<Matmul>(directory.path()).unwrap();
        assert_eq!(records.len(), 2);
        assert_eq!((records[0].k, records[0].tf32), (3, None));
        assert_eq!(records[1].tf32, Some(true));
    }

    #[test]
    fn should_find_nothing_where_nothing_is() {
        let directory = tempfile::tempdir().unwrap();
        assert!(read::<Training>(directory.path()).unwrap().is_empty());
    }

    #[test]
    fn should_name_a_file_that_is_wrong() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("train.csv"), "mode\nf32\n").unwrap();
        let error = read::<Training>(directory.path()).unwrap_err().to_string();
        assert!(error.contains("train.csv"), "{error}");
    }
}
