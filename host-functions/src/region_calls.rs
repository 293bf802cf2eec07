//! The host functions `region_share`, `region_seal`, `region_release` and `region_info`. Runs in a worker.

use cwasi_abi::{Errno, HUGE_PAGE, REGION_PAGE, RegionInfo};

use crate::pages::{PagedMemory, Pages, PagesError};
use crate::regions::{RegionFault, Regions};
use crate::{GuestPtr, Host, Level};

impl RegionFault {
    /// What the guest learns; faults of ours go to the host's log.
    fn errno(self, host: &mut Host) -> Errno {
        match self {
            Self::Errno(errno) => errno,
            Self::Pages(PagesError::Unsupported) => Errno::NotAvailable,
            Self::Pages(error) => {
                host.log.log(Level::Error, &host.context, &format!("region: {error}"));
                Errno::Internal
            }
        }
    }
}

/// `region_share(ptr, len) -> errno`: these pages become a region, zero. `regions` is `None` in a module that
/// has none.
///
/// # Errors
/// [`Errno::InvalidArgument`] unless they are whole pages and no other region's; [`Errno::BadPointer`];
/// [`Errno::TooManyHandles`] beyond `REGIONS_MAX`; [`Errno::NotAvailable`]; [`Errno::Internal`].
pub fn region_share<M: PagedMemory>(
    host: &mut Host,
    memory: &mut M,
    regions: Option<&mut Regions<M>>,
    ptr: GuestPtr,
    len: u32,
) -> Result<(), Errno> {
    let pages = Pages::new(ptr, len)?;
    memory.slice(ptr, len)?;
    let regions = regions.ok_or(Errno::NotAvailable)?;
    regions.share(memory, pages).map_err(|fault| fault.errno(host))
}

/// `region_seal(ptr, len) -> errno`: the first `len` bytes of the open region at `ptr` are final, and the region's
/// pages behind them become zero; or the payload or response of `len` bytes that is mapped there can be sent on. Calls
/// send it without copying from here on.
///
/// # Errors
/// [`Errno::InvalidArgument`] when neither an open region of at least `len` bytes nor that starts there, when the guest
/// has changed it, or `len` is 0;
/// [`Errno::BadPointer`]; [`Errno::NotAvailable`]; [`Errno::Internal`], and then there is no such region any more.
pub fn region_seal<M: PagedMemory>(
    host: &mut Host,
    memory: &mut M,
    regions: Option<&mut Regions<M>>,
    ptr: GuestPtr,
    len: u32,
) -> Result<(), Errno> {
    memory.slice(ptr, len)?;
    let regions = regions.ok_or(Errno::NotAvailable)?;
    match regions.seal(memory, ptr, len) {
        Ok(true) => Ok(()),
        Ok(false) => Err(Errno::InvalidArgument),
        Err(error) => Err(RegionFault::from(error).errno(host)),
    }
}

/// `region_release(ptr, len) -> errno`: exactly this region, or the pages that a payload or response was mapped in,
/// become ordinary memory, zero.
///
/// # Errors
/// [`Errno::InvalidArgument`] when there is no such region; [`Errno::Internal`].
pub fn region_release<M: PagedMemory>(
    host: &mut Host,
    memory: &mut M,
    regions: Option<&mut Regions<M>>,
    ptr: GuestPtr,
    len: u32,
) -> Result<(), Errno> {
    let pages = Pages::new(ptr, len)?;
    memory.slice(ptr, len)?;
    let regions = regions.ok_or(Errno::NotAvailable)?;
    regions.release(memory, pages).map_err(|fault| fault.errno(host))
}

/// `region_info(info_out) -> errno`: writes a [`RegionInfo`], all zero in a module that has no regions.
///
/// # Errors
/// [`Errno::BadPointer`].
pub fn region_info<M: PagedMemory>(
    memory: &mut M,
    regions: Option<&mut Regions<M>>,
    out: GuestPtr,
) -> Result<(), Errno> {
    let info = match (regions, memory.phase(HUGE_PAGE)) {
        (Some(_), Some(phase)) => {
            RegionInfo { page_len: REGION_PAGE, huge_page_len: HUGE_PAGE, phase, reserved: 0 }
        }
        _ => RegionInfo::default(),
    };
    memory.write(out, &info.to_bytes())
}
