//! GPUs that NVIDIA's driver reports, and reasons that they cannot be used.
//!
//! cudarc panics without the driver's library, so its presence is checked first. Every error is a
//! single line.

use std::panic::{AssertUnwindSafe, catch_unwind};

use cudarc::driver::result::{self, DriverError};
use cudarc::driver::{CudaContext, sys};

use super::Error;

/// Oldest compute capability with all features that the kernels use: Ampere.
const OLDEST: (i32, i32) = (8, 0);

/// Properties of a GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuInfo {
    /// Index that opens it.
    pub ordinal: usize,
    /// Product name.
    pub name: String,
    /// Compute capability.
    pub capability: (i32, i32),
    /// Memory in bytes.
    pub memory: u64,
    /// Number of multiprocessors.
    pub multiprocessors: u32,
    /// CUDA version of the driver.
    pub driver: (i32, i32),
    /// It shares the machine's memory instead of having its own.
    pub integrated: bool,
    /// Driver's error if its properties could not be read; the other fields are then placeholders.
    pub fault: Option<String>,
}

impl GpuInfo {
    /// Architecture to compile for. Hopper's is `sm_90a`, with its architecture-specific
    /// instructions.
    pub fn arch(&self) -> String {
        let own = if self.is_wide() { "a" } else { "" };
        format!("sm_{}{}{own}", self.capability.0, self.capability.1)
    }

    /// Whether it has warpgroup matrix multiply (groups of four warps): Hopper only.
    pub(super) fn is_wide(&self) -> bool {
        self.capability == (9, 0)
    }

    /// Whether its tensor cores multiply bytes at full speed with `mma.sync`. Those of data center
    /// Blackwell have other instructions for it.
    pub(super) fn has_fast_imma(&self) -> bool {
        self.capability.0 != 10
    }

    /// Checks that the kernels can run on it.
    pub(super) fn check(&self) -> Result<(), Error> {
        if let Some(fault) = &self.fault {
            let message = format!("GPU {}: {fault}", self.ordinal);
            return Err(Error::Unavailable(message));
        }
        if self.capability < OLDEST {
            let ((major, minor), (needed, _)) = (self.capability, OLDEST);
            return Err(Error::Unavailable(format!(
                "GPU {} ({}) has compute capability {major}.{minor}: expected {needed}.0 or newer",
                self.ordinal, self.name
            )));
        }
        Ok(())
    }
}

pub(super) fn driver_error(call: &'static str) -> impl Fn(DriverError) -> Error {
    move |error| {
        let mut message = error.error_string().map_or_else(
            |_| format!("{error:?}"),
            |s| s.to_string_lossy().into_owned(),
        );
        if error.0 == sys::CUresult::CUDA_ERROR_STUB_LIBRARY {
            message += ": the loader found libcuda.so of a toolkit, expected that of the driver";
        }
        Error::Driver { call, message }
    }
}

/// Runs `f` and turns the panic of cudarc about a function missing from the driver into an error.
pub(super) fn guarded<T>(f: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
    guarded_of("NVIDIA's driver", f)
}

/// As [`guarded`], for another library.
pub(super) fn guarded_of<T>(
    library: &str,
    f: impl FnOnce() -> Result<T, Error>,
) -> Result<T, Error> {
    catch_unwind(AssertUnwindSafe(f)).unwrap_or_else(|_| {
        let lacks = format!("{library} lacks a function that is needed");
        Err(Error::Unavailable(lacks))
    })
}

/// Lists every GPU of the driver, usable or not.
///
/// # Errors
/// [`Error::Unavailable`] if there is no driver or no GPU.
pub fn gpus() -> Result<Vec<GpuInfo>, Error> {
    // SAFETY: opens the driver's library, which runs NVIDIA's initialization code.
    if !unsafe { sys::is_culib_present() } {
        return Err(Error::NoDriver);
    }
    guarded(|| {
        let none =
            |what: String| Error::Unavailable(format!("NVIDIA's driver offers no GPU ({what})"));
        let count = CudaContext::device_count()
            .map_err(|error| none(driver_error("cuInit")(error).to_string()))?;
        if count <= 0 {
            return Err(none("it counts none".to_owned()));
        }
        let mut version = 0;
        // SAFETY: writes one integer.
        unsafe { sys::cuDriverGetVersion(&raw mut version) }
            .result()
            .map_err(driver_error("cuDriverGetVersion"))?;
        let driver = (version / 1000, version % 1000 / 10);
        let one = |ordinal| {
            info(ordinal, driver).unwrap_or_else(|error| GpuInfo {
                ordinal,
                name: "unknown".to_owned(),
                capability: (0, 0),
                memory: 0,
                multiprocessors: 1,
                driver,
                integrated: false,
                fault: Some(driver_error("cuDeviceGet")(error).to_string()),
            })
        };
        Ok((0..count as usize).map(one).collect())
    })
}

/// Reads the machine's available memory in bytes, including reclaimable page cache.
pub(super) fn available() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib << 10)
}

fn info(ordinal: usize, driver: (i32, i32)) -> Result<GpuInfo, DriverError> {
    use sys::CUdevice_attribute_enum as Attribute;
    let device = result::device::get(ordinal as i32)?;
    // SAFETY: the driver just returned this device.
    let attribute = |attribute| unsafe { result::device::get_attribute(device, attribute) };
    let capability = (
        attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
        attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
    );
    let multiprocessors =
        attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?.max(1) as u32;
    let integrated = attribute(Attribute::CU_DEVICE_ATTRIBUTE_INTEGRATED)? != 0;
    // SAFETY: as above.
    let memory = unsafe { result::device::total_mem(device)? } as u64;
    let name = result::device::get_name(device)?;
    Ok(GpuInfo {
        ordinal,
        name,
        capability,
        memory,
        multiprocessors,
        driver,
        integrated,
        fault: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_one_line() {
        if let Err(error) = gpus() {
            let line = error.to_string();
            assert!(
                line.starts_with("NVIDIA's driver") && !line.contains('\n'),
                "{line}"
            );
            assert!(crate::cuda::Gpu::open(0, None).is_err());
        }
    }

    #[test]
    fn old_generations_are_refused_by_number() {
        let info = |capability| GpuInfo {
            ordinal: 1,
            name: "Old".to_owned(),
            capability,
            memory: 0,
            multiprocessors: 1,
            driver: (12, 0),
            integrated: false,
            fault: None,
        };
        assert!(
            info((8, 0)).check().is_ok()
                && info((9, 0)).check().is_ok()
                && info((8, 7)).check().is_ok()
        );
        let error = info((7, 5)).check().expect_err("too old").to_string();
        assert_eq!(
            error,
            "GPU 1 (Old) has compute capability 7.5: expected 8.0 or newer"
        );
        // only Hopper gets its architecture-specific target
        let arch = |capability| info(capability).arch();
        assert_eq!(
            (arch((8, 6)), arch((9, 0)), arch((12, 0))),
            ("sm_86".to_owned(), "sm_90a".to_owned(), "sm_120".to_owned())
        );
    }
}
