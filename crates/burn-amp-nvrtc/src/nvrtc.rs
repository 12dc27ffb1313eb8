//! NVIDIA's runtime compiler, loaded when the program runs.

use std::ffi::{CStr, CString, c_char, c_int};
use std::path::{Path, PathBuf};
use std::ptr;

use anyhow::{Context, Result, bail, ensure};
use libloading::Library;

type Program = *mut std::ffi::c_void;
type Status = c_int;
type SizeOf = unsafe extern "C" fn(Program, *mut usize) -> Status;
type BytesOf = unsafe extern "C" fn(Program, *mut c_char) -> Status;

const LIBRARY: &str = "libnvrtc.so.13";

/// The functions of NVRTC, and where CUDA's headers are.
#[derive(Debug)]
pub struct Nvrtc {
    include: PathBuf,
    version: unsafe extern "C" fn(*mut c_int, *mut c_int) -> Status,
    error_string: unsafe extern "C" fn(Status) -> *const c_char,
    create: unsafe extern "C" fn(
        *mut Program,
        *const c_char,
        *const c_char,
        c_int,
        *const *const c_char,
        *const *const c_char,
    ) -> Status,
    compile: unsafe extern "C" fn(Program, c_int, *const *const c_char) -> Status,
    destroy: unsafe extern "C" fn(*mut Program) -> Status,
    log: (SizeOf, BytesOf),
    ptx: (SizeOf, BytesOf),
    cubin: (SizeOf, BytesOf),
    /// Keeps the functions in memory.
    _library: Library,
}

/// What NVRTC makes of a source.
#[derive(Debug, Clone)]
pub struct Compiled {
    /// The virtual assembly, which CubeCL hands to the driver.
    pub ptx: String,
    /// The machine code.
    pub cubin: Vec<u8>,
    /// What the assembler said of the registers and memory of each function.
    pub log: String,
}

macro_rules! symbols {
    ($library:ident, $($name:literal),*) => {
        ($(*$library.get($name).with_context(|| {
            format!("{LIBRARY} lacks {}", $name.escape_ascii())
        })?),*)
    };
}

impl Nvrtc {
    /// Loads `lib/libnvrtc.so.13` of a CUDA folder.
    ///
    /// NVRTC opens a second library by its bare name: the loader's path has to hold `lib`.
    ///
    /// # Errors
    ///
    /// The folder has no NVRTC or no headers, or the library cannot be loaded.
    #[allow(unsafe_code)]
    pub fn load(cuda: &Path) -> Result<Self> {
        let include = cuda.join("include");
        ensure!(
            include.join("cuda_fp16.h").is_file(),
            "{} has no CUDA headers",
            include.display()
        );
        let path = cuda.join("lib").join(LIBRARY);
        // SAFETY: the library's initializers are NVIDIA's, and the types are those of nvrtc.h.
        unsafe {
            let library =
                Library::new(&path).with_context(|| format!("cannot load {}", path.display()))?;
            let (version, error_string, create, compile, destroy) = symbols!(
                library,
                b"nvrtcVersion",
                b"nvrtcGetErrorString",
                b"nvrtcCreateProgram",
                b"nvrtcCompileProgram",
                b"nvrtcDestroyProgram"
            );
            Ok(Self {
                include,
                version,
                error_string,
                create,
                compile,
                destroy,
                log: symbols!(library, b"nvrtcGetProgramLogSize", b"nvrtcGetProgramLog"),
                ptx: symbols!(library, b"nvrtcGetPTXSize", b"nvrtcGetPTX"),
                cubin: symbols!(library, b"nvrtcGetCUBINSize", b"nvrtcGetCUBIN"),
                _library: library,
            })
        }
    }

    /// The version of CUDA that the compiler belongs to.
    ///
    /// # Errors
    ///
    /// The library does not say.
    #[allow(unsafe_code)]
    pub fn version(&self) -> Result<(i32, i32)> {
        let (mut major, mut minor) = (0, 0);
        // SAFETY: both pointers are valid.
        self.check(unsafe { (self.version)(&raw mut major, &raw mut minor) })?;
        Ok((major, minor))
    }

    /// The options of CubeCL's CUDA runtime, and one more: that the assembler reports what it used.
    fn options(&self, version: u32) -> Vec<String> {
        let suffix = if version >= 90 { "a" } else { "" };
        let mut options = vec![
            format!("--gpu-architecture=sm_{version}{suffix}"),
            format!("--include-path={}", self.include.display()),
            "-lineinfo".to_owned(),
            "--ptxas-options=-v".to_owned(),
        ];
        let cccl = self.include.join("cccl");
        if cccl.is_dir() {
            options.push(format!("--include-path={}", cccl.display()));
        }
        options
    }

    /// Compiles a source for an architecture, given by ten times its compute capability.
    ///
    /// # Errors
    ///
    /// What the compiler says of the source.
    #[allow(unsafe_code)]
    pub fn compile(&self, source: &str, version: u32) -> Result<Compiled> {
        let source = CString::new(source).context("the source has a null byte")?;
        let options: Vec<CString> = self
            .options(version)
            .into_iter()
            .map(CString::new)
            .collect::<Result<_, _>>()
            .context("a path has a null byte")?;
        let options: Vec<_> = options.iter().map(|option| option.as_ptr()).collect();
        let mut program = Handle {
            nvrtc: self,
            program: ptr::null_mut(),
        };
        // SAFETY: the strings live until the calls return, and the program until it is dropped.
        let status = unsafe {
            self.check((self.create)(
                &raw mut program.program,
                source.as_ptr(),
                ptr::null(),
                0,
                ptr::null(),
                ptr::null(),
            ))?;
            (self.compile)(program.program, options.len() as c_int, options.as_ptr())
        };
        let log = program.text(self.log)?;
        if let Err(error) = self.check(status) {
            bail!("{error}\n{}", log.trim());
        }
        Ok(Compiled {
            ptx: program.text(self.ptx)?,
            cubin: program.bytes(self.cubin)?,
            log,
        })
    }

    #[allow(unsafe_code)]
    fn check(&self, status: Status) -> Result<()> {
        if status == 0 {
            return Ok(());
        }
        // SAFETY: the library returns a string of its own for every status.
        let name = unsafe { CStr::from_ptr((self.error_string)(status)) };
        bail!("{}", name.to_string_lossy())
    }
}

struct Handle<'a> {
    nvrtc: &'a Nvrtc,
    program: Program,
}

impl Handle<'_> {
    #[allow(unsafe_code)]
    fn bytes(&self, (size_of, bytes_of): (SizeOf, BytesOf)) -> Result<Vec<u8>> {
        let mut size = 0;
        // SAFETY: the program exists, and the buffer has the size that the library asked for.
        unsafe {
            self.nvrtc.check(size_of(self.program, &raw mut size))?;
            let mut bytes = vec![0u8; size];
            self.nvrtc
                .check(bytes_of(self.program, bytes.as_mut_ptr().cast()))?;
            Ok(bytes)
        }
    }

    fn text(&self, functions: (SizeOf, BytesOf)) -> Result<String> {
        let bytes = self.bytes(functions)?;
        let end = bytes
            .iter()
            .position(|byte| *byte == 0)
            .unwrap_or(bytes.len());
        Ok(String::from_utf8_lossy(&bytes[..end]).into_owned())
    }
}

impl Drop for Handle<'_> {
    #[allow(unsafe_code)]
    fn drop(&mut self) {
        if !self.program.is_null() {
            // SAFETY: the program exists, and nothing uses it from here on.
            unsafe { (self.nvrtc.destroy)(&raw mut self.program) };
        }
    }
}
