//! The machine that a benchmark runs on.

use candle_core::Device;

/// The name of the processor, where the system gives one.
pub fn processor() -> Option<String> {
    if cfg!(target_os = "macos") {
        let asked = std::process::Command::new("sysctl").args(["-n", "machdep.cpu.brand_string"]).output().ok()?;
        return String::from_utf8(asked.stdout).ok().map(|name| name.trim().to_string());
    }
    match std::fs::read_to_string("/proc/cpuinfo") {
        Ok(facts) => named(&facts),
        // Windows.
        Err(_) => std::env::var("PROCESSOR_IDENTIFIER").ok(),
    }
}

/// The name of the first processor in `/proc/cpuinfo`, with its family and model: the names of a cloud's processors
/// often have no number. Those of Arm have numbers only.
fn named(facts: &str) -> Option<String> {
    let value = |keys: &[&str]| {
        let mut pairs = facts.lines().filter_map(|line| line.split_once(':'));
        pairs.find(|(key, _)| keys.contains(&key.trim())).map(|(_, value)| value.trim())
    };
    if let (Some(family), Some(model)) = (value(&["cpu family"]), value(&["model"])) {
        return Some(format!("{} (family {family}, model {model})", value(&["model name"])?));
    }
    let name = value(&["model name", "Model", "Hardware"]).map(str::to_string);
    name.or_else(|| Some(format!("Arm, implementer {}, part {}", value(&["CPU implementer"])?, value(&["CPU part"])?)))
}

/// The name of a device; of an NVIDIA GPU, its model too. An Apple GPU is part of the processor.
pub fn device(device: &Device) -> String {
    match device {
        Device::Cpu => "cpu".to_string(),
        #[cfg(feature = "cuda")]
        Device::Cuda(cuda) => {
            cuda.cuda_stream().context().name().map_or("cuda".to_string(), |name| format!("cuda, {name}"))
        }
        #[cfg(not(feature = "cuda"))]
        Device::Cuda(_) => "cuda".to_string(),
        Device::Metal(_) => "metal".to_string(),
    }
}

/// The most memory that this process has held, in bytes, where the system counts it.
pub fn peak_memory() -> Option<u64> {
    #[cfg(unix)]
    {
        use nix::sys::resource::{UsageWho, getrusage};
        // Apple counts bytes, other systems count kibibytes.
        let unit = if cfg!(target_vendor = "apple") { 1 } else { 1024 };
        getrusage(UsageWho::RUSAGE_SELF).ok().map(|usage| usage.max_rss().unsigned_abs() * unit)
    }
    #[cfg(not(unix))]
    None
}

#[cfg(test)]
mod tests {
    use super::named;

    #[test]
    fn processors_are_named() {
        let amd = "processor\t: 0\ncpu family\t: 26\nmodel\t\t: 2\nmodel name\t: AMD EPYC\n";
        assert_eq!(named(amd).unwrap(), "AMD EPYC (family 26, model 2)");
        let arm = "processor\t: 0\nCPU implementer\t: 0x41\nCPU part\t: 0xd0c\n";
        assert_eq!(named(arm).unwrap(), "Arm, implementer 0x41, part 0xd0c");
        assert_eq!(named(&format!("{arm}Model\t\t: Raspberry Pi 5\n")).unwrap(), "Raspberry Pi 5");
        assert_eq!(named(""), None);
    }
}
