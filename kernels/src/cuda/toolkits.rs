//! Locations to search for NVRTC: toolkits, Python packages, and environment variables.

use std::path::{Path, PathBuf};

/// File names of NVRTC, the newest version first.
pub(super) const NVRTC: [&str; 3] = match cfg!(windows) {
    true => ["nvrtc64_130_0.dll", "nvrtc64_120_0.dll", "nvrtc.dll"],
    false => ["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"],
};

/// Beginning of the file name of the library with NVRTC's built-in functions.
pub(super) const NVRTC_BUILTINS: &str = match cfg!(windows) {
    true => "nvrtc-builtins64",
    false => "libnvrtc-builtins.so",
};

/// Roots of the search for NVRTC.
pub(super) struct Places {
    /// Folder of this executable.
    beside: Option<PathBuf>,
    /// Toolkits named by environment variables.
    toolkits: Vec<PathBuf>,
    /// Python environments named by environment variables.
    environments: Vec<PathBuf>,
    /// Folder with installed toolkits, such as `cuda` and `cuda-12.9`.
    local: PathBuf,
    /// Folders of `PATH`.
    path: Vec<PathBuf>,
}

impl Places {
    pub(super) fn of_process() -> Places {
        let environment = |names: [&str; 2]| {
            names
                .into_iter()
                .filter_map(std::env::var_os)
                .map(PathBuf::from)
                .collect::<Vec<_>>()
        };
        Places {
            beside: std::env::current_exe()
                .ok()
                .and_then(|p| p.parent().map(Path::to_owned)),
            toolkits: environment(["CUDA_HOME", "CUDA_PATH"]),
            environments: environment(["VIRTUAL_ENV", "CONDA_PREFIX"]),
            local: "/usr/local".into(),
            path: std::env::var_os("PATH")
                .iter()
                .flat_map(std::env::split_paths)
                .collect(),
        }
    }

    /// Lists installed toolkits: the default, then the newest first, then those of `nvcc` on the
    /// path.
    fn installed(&self) -> Vec<PathBuf> {
        let mut versions: Vec<(Vec<u32>, PathBuf)> = entries(&self.local)
            .filter_map(|path| {
                let version = path.file_name()?.to_str()?.strip_prefix("cuda-")?;
                Some((
                    version
                        .split('.')
                        .map(str::parse)
                        .collect::<Result<_, _>>()
                        .ok()?,
                    path,
                ))
            })
            .collect();
        versions.sort_unstable_by(|a, b| b.cmp(a));
        let mut all = vec![self.local.join("cuda")];
        all.extend(versions.into_iter().map(|(_, path)| path));
        all.extend(self.prefixes("nvcc"));
        all
    }

    /// Returns the prefixes of a program on the path, that is, the parents of its folder: for the
    /// program itself and for each link that it resolves through. The programs of a Python
    /// environment link to those of another.
    fn prefixes(&self, program: &str) -> Vec<PathBuf> {
        const LINKS: usize = 8;
        let found = self
            .path
            .iter()
            .map(|dir| dir.join(program))
            .find(|path| path.is_file());
        let next = |path: &PathBuf| Some(path.parent()?.join(std::fs::read_link(path).ok()?));
        let links = std::iter::successors(found, next).take(LINKS);
        // a link may lead through `..` and folders that are links themselves
        let above = |path: PathBuf| Some(path.parent()?.canonicalize().ok()?.parent()?.to_owned());
        links.filter_map(above).collect()
    }

    /// Lists candidate libraries in search order.
    pub(super) fn candidates(&self) -> Vec<PathBuf> {
        let mut dirs: Vec<PathBuf> = self.beside.iter().cloned().collect();
        dirs.extend(self.toolkits.iter().flat_map(|root| of_toolkit(root)));
        dirs.extend(self.environments.iter().flat_map(|root| of_python(root)));
        dirs.extend(self.installed().iter().flat_map(|root| of_toolkit(root)));
        dirs.extend(
            self.prefixes("python3")
                .iter()
                .flat_map(|root| of_python(root)),
        );
        let mut all: Vec<PathBuf> = dirs
            .iter()
            .flat_map(|dir| NVRTC.map(|name| dir.join(name)))
            .collect();
        all.retain(|path| path.exists());
        // bare names, for the loader's search path
        all.extend(NVRTC.map(PathBuf::from));
        all
    }
}

/// Lists possible folders of CUDA toolkits, in search order.
pub fn toolkits() -> Vec<PathBuf> {
    let places = Places::of_process();
    let installed = places.installed();
    places.toolkits.into_iter().chain(installed).collect()
}

fn entries(dir: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    dir.read_dir()
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path())
}

/// Returns the library folders of a toolkit.
fn of_toolkit(root: &Path) -> Vec<PathBuf> {
    const LINUX: [&str; 5] = [
        "lib64",
        "lib",
        "targets/x86_64-linux/lib",
        "targets/aarch64-linux/lib",
        "targets/sbsa-linux/lib",
    ];
    let folders: &[&str] = match cfg!(windows) {
        true => &["bin/x64", "bin"],
        false => &LINUX,
    };
    folders.iter().map(|folder| root.join(folder)).collect()
}

/// Lists the folders of NVIDIA's libraries among Python packages, including Debian's folder for
/// packages that the system does not own.
fn of_python(root: &Path) -> Vec<PathBuf> {
    if cfg!(windows) {
        let nvidia = root.join("Lib/site-packages/nvidia");
        return ["cu13/bin/x86_64", "cuda_nvrtc/bin"]
            .map(|folder| nvidia.join(folder))
            .into();
    }
    let packages = |python: PathBuf| {
        ["site-packages", "dist-packages"].map(|name| python.join(name).join("nvidia"))
    };
    let pythons = ["lib", "local/lib"]
        .into_iter()
        .flat_map(|lib| entries(&root.join(lib)));
    pythons
        .flat_map(packages)
        .flat_map(|nvidia| [nvidia.join("cu13/lib"), nvidia.join("cuda_nvrtc/lib")])
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(unix)]
    #[test]
    fn what_is_named_comes_before_what_is_found() {
        use std::os::unix::fs::symlink;
        let folders = [
            "beside",
            "named/lib64",
            "active/lib/python3.12/site-packages/nvidia/cuda_nvrtc/lib",
            "local/cuda/lib64",
            "local/cuda-12.10/targets/sbsa-linux/lib",
            "local/cuda-12.9/lib64",
            "local/cuda-9.2/lib64",
            "opt/cuda/lib64",
            "opt/env/lib/python3.12/site-packages/nvidia/cu13/lib",
            "usr/local/lib/python3.11/dist-packages/nvidia/cuda_nvrtc/lib",
        ];
        let dir = tempfile::tempdir().expect("a folder");
        let root = dir.path().canonicalize().expect("it is there");
        let libraries = folders.map(|folder| (folder, "libnvrtc.so.12"));
        for (dir, file) in libraries
            .into_iter()
            .chain([("opt/cuda/bin", "nvcc"), ("usr/bin", "python3.11")])
        {
            std::fs::create_dir_all(root.join(dir)).expect("a folder");
            std::fs::write(root.join(dir).join(file), "").expect("a file");
        }
        for dir in ["bin", "opt/env/bin", "local/cuda-old"] {
            std::fs::create_dir_all(root.join(dir)).expect("a folder");
        }
        let link = |to: &str, from: &str| symlink(to, root.join(from)).expect("a link");
        link("../opt/cuda/bin/nvcc", "bin/nvcc");
        link("../opt/env/bin/python3", "bin/python3");
        link("python", "opt/env/bin/python3");
        link("../../../usr/bin/python3.11", "opt/env/bin/python");

        let places = Places {
            beside: Some(root.join("beside")),
            toolkits: vec![root.join("named"), root.join("absent")],
            environments: vec![root.join("active")],
            local: root.join("local"),
            path: vec![root.join("absent"), root.join("bin")],
        };
        let mut got = places.candidates();
        let by_name = got.split_off(got.len() - 3);
        assert!(
            by_name.iter().all(|name| name.components().count() == 1),
            "{by_name:?}"
        );
        let mut relative: Vec<String> = Vec::new();
        for path in &got {
            let folder = path
                .parent()
                .and_then(|dir| dir.strip_prefix(&root).ok())
                .expect("in the tree");
            relative.push(folder.to_str().expect("text").to_owned());
        }
        // `python3` and `python` belong to the same environment
        relative.dedup();
        assert_eq!(relative, folders);
    }
}
