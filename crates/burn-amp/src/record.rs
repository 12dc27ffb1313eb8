//! Checkpoints that a killed program cannot leave half written.

use std::any::Any;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use burn::record::{BurnRecord, FileRecorder, Record, Recorder, RecorderError};
use burn::tensor::backend::Backend;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// A file recorder whose files are either complete or not there.
///
/// A record is written beside its file, flushed to the disk, read back, and only then put in the place of
/// what was there: a program that is killed, and a disk that is full, leave the file of before. A file that
/// cannot be read is an error with its path, also where the wrapped recorder would panic. Two that write to
/// one path at the same time are not kept apart, and an item that is saved without a record is not read back.
///
/// The files are those of the wrapped recorder, which reads them too.
///
/// # Example
///
/// ```
/// use burn::record::DefaultRecorder;
/// use burn_amp::record::AtomicFileRecorder;
///
/// let recorder = AtomicFileRecorder::<DefaultRecorder>::default();
/// // training.with_file_checkpointer(recorder)
/// # let _ = recorder;
/// ```
#[derive(Debug, Clone, Default)]
pub struct AtomicFileRecorder<R> {
    inner: R,
}

impl<R> AtomicFileRecorder<R> {
    /// Writes and reads by `inner`.
    pub fn new(inner: R) -> Self {
        Self { inner }
    }
}

impl<R> AtomicFileRecorder<R> {
    /// Writes a file by `write` and reads it by `check` under another name, and renames it then.
    fn replace<B: Backend>(
        path: &Path,
        write: impl FnOnce(PathBuf) -> Result<(), RecorderError>,
        check: impl FnOnce(PathBuf) -> Result<(), RecorderError>,
    ) -> Result<(), RecorderError>
    where
        R: FileRecorder<B>,
    {
        let path = path.with_extension(R::file_extension());
        let partial = Partial::of(&path, R::file_extension());
        let replaced = (|| {
            write(partial.without_extension()).map_err(|error| failed("write", &path, &error))?;
            // Burn's recorders do not see a disk that is full: it shows in the file only.
            check(partial.without_extension())
                .map_err(|error| failed("read back what was written to", &path, &error))?;
            sync(&partial.0)
                .and_then(|()| fs::rename(&partial.0, &path))
                .and_then(|()| sync_folder(&path))
                .map_err(|error| failed("write", &path, &error))
        })();
        if replaced.is_err() {
            // There may be none; what is told is why there is no file.
            let _ = fs::remove_file(&partial.0);
        }
        replaced
    }
}

impl<B: Backend, R: FileRecorder<B>> FileRecorder<B> for AtomicFileRecorder<R> {
    fn file_extension() -> &'static str {
        R::file_extension()
    }
}

impl<B: Backend, R: FileRecorder<B>> Recorder<B> for AtomicFileRecorder<R> {
    type Settings = R::Settings;
    type RecordArgs = PathBuf;
    type RecordOutput = ();
    type LoadArgs = PathBuf;

    fn record<T: Record<B>>(&self, record: T, path: PathBuf) -> Result<(), RecorderError> {
        Self::replace::<B>(
            &path,
            |partial| self.inner.record(record, partial),
            |mut partial| {
                readable(&partial.clone(), || {
                    self.inner
                        .load_item::<BurnRecord<T::Item<R::Settings>, B>>(&mut partial)
                        .map(drop)
                })
            },
        )
    }

    fn load<T: Record<B>>(&self, path: PathBuf, device: &B::Device) -> Result<T, RecorderError> {
        readable(&path.with_extension(R::file_extension()), || {
            self.inner.load(path, device)
        })
    }

    fn save_item<I: Serialize>(&self, item: I, path: PathBuf) -> Result<(), RecorderError> {
        Self::replace::<B>(
            &path,
            |partial| self.inner.save_item(item, partial),
            // Its type is not one that can be read.
            |_partial| Ok(()),
        )
    }

    fn load_item<I: DeserializeOwned>(&self, path: &mut PathBuf) -> Result<I, RecorderError> {
        let file = path.with_extension(R::file_extension());
        readable(&file, || self.inner.load_item(path))
    }
}

/// The file that becomes another when it is complete.
struct Partial(PathBuf, &'static str);

impl Partial {
    fn of(path: &Path, extension: &'static str) -> Self {
        let mut name = OsString::from("partial-");
        name.push(path.file_name().unwrap_or_default());
        Self(path.with_file_name(name), extension)
    }

    /// Burn's recorders put the extension, which may have a dot of its own, in the place of the last one.
    fn without_extension(&self) -> PathBuf {
        let parts = self.1.split('.').count();
        let bare = (0..parts).fold(self.0.clone(), |path, _| path.with_extension(""));
        let mut name = bare.file_name().unwrap_or_default().to_owned();
        name.push(".any");
        bare.with_file_name(name)
    }
}

fn sync(path: &Path) -> io::Result<()> {
    File::options().write(true).open(path)?.sync_all()
}

/// A new name is on the disk when its folder is.
fn sync_folder(path: &Path) -> io::Result<()> {
    let folder = path
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty());
    if cfg!(unix) {
        File::open(folder.unwrap_or(Path::new(".")))?.sync_all()?;
    }
    Ok(())
}

fn failed(what: &str, path: &Path, error: &dyn std::fmt::Display) -> RecorderError {
    RecorderError::Unknown(format!("cannot {what} {}: {error}", path.display()))
}

fn readable<T>(
    path: &Path,
    read: impl FnOnce() -> Result<T, RecorderError>,
) -> Result<T, RecorderError> {
    match catch_unwind(AssertUnwindSafe(read)) {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(RecorderError::FileNotFound(error))) => Err(RecorderError::FileNotFound(format!(
            "{}: {error}",
            path.display()
        ))),
        Ok(Err(error)) => Err(unreadable(path, &error.to_string())),
        Err(panic) => Err(unreadable(path, message(&*panic))),
    }
}

fn unreadable(path: &Path, error: &str) -> RecorderError {
    RecorderError::DeserializeError(format!(
        "{} is not complete, or not a record of this kind: {error}",
        path.display()
    ))
}

fn message(panic: &(dyn Any + Send)) -> &str {
    let owned = panic.downcast_ref::<String>().map(String::as_str);
    owned
        .or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or("the recorder panicked")
}
