use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;

/// The names of the files that Burn's file checkpointer writes for an epoch.
const PARTS: [&str; 3] = ["model", "optim", "scheduler"];

/// The epochs of which Burn's file checkpointer left all three files in `artifacts`, the folder that
/// `SupervisedTraining` was given, the newest first: that is what to hand to its `checkpoint` after a
/// training was stopped. None if there is no folder.
///
/// The three are written one after another, so a program that is killed may leave one or two. That those
/// that are there are complete is what [`AtomicFileRecorder`](crate::record::AtomicFileRecorder) sees to;
/// keep two checkpoints at least, as `Learner` does by default, for an old one is deleted before the new one is
/// complete.
///
/// # Errors
///
/// The folder cannot be read.
pub fn checkpoints(artifacts: impl AsRef<Path>) -> io::Result<Vec<usize>> {
    let entries = match fs::read_dir(artifacts.as_ref().join("checkpoint")) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut found = BTreeMap::<usize, [bool; PARTS.len()]>::new();
    for entry in entries {
        let name = entry?.file_name();
        if let Some((part, epoch)) = name.to_str().and_then(part_and_epoch) {
            found.entry(epoch).or_default()[part] = true;
        }
    }
    let complete = found
        .into_iter()
        .filter(|(_, parts)| parts.iter().all(|exists| *exists));
    Ok(complete.map(|(epoch, _)| epoch).rev().collect())
}

/// Of `optim-12.mpk`, the second part and 12.
fn part_and_epoch(name: &str) -> Option<(usize, usize)> {
    let (part, rest) = name.split_once('-')?;
    let (epoch, _extension) = rest.split_once('.')?;
    let part = PARTS.iter().position(|known| *known == part)?;
    Some((part, epoch.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_epoch_counts_if_its_three_files_exist() {
        let folder = tempfile::tempdir().unwrap();
        let epochs = || checkpoints(folder.path()).unwrap();
        assert!(epochs().is_empty());

        fs::create_dir(folder.path().join("checkpoint")).unwrap();
        let touch =
            |name: &str| fs::write(folder.path().join("checkpoint").join(name), "").unwrap();
        touch("model-9.mpk");
        touch("optim-9.mpk");
        touch("partial-scheduler-9.mpk");
        assert!(epochs().is_empty());
        touch("scheduler-9.mpk");
        assert_eq!(epochs(), [9]);
        for name in ["model-10.mpk.gz", "optim-10.mpk.gz", "scheduler-10.mpk.gz"] {
            touch(name);
        }
        touch("model-11.mpk.gz");
        assert_eq!(epochs(), [10, 9]);
    }

    #[test]
    fn a_file_in_the_place_of_the_folder_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("checkpoint"), "").unwrap();
        assert!(checkpoints(folder.path()).is_err());
    }
}
