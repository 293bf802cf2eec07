//! A client of containerd's CRI service, as the kubelet is one: pods, their containers, and what is known about them.
//!
//! Every method panics with the service's words when it refuses, but for [`Pod::exec`].

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use k8s_cri::v1::image_service_client::ImageServiceClient;
use k8s_cri::v1::runtime_service_client::RuntimeServiceClient;
use k8s_cri::v1::{
    ContainerConfig, ContainerMetadata, ContainerState, ContainerStats, ContainerStatsRequest,
    ContainerStatus, ContainerStatusRequest, CreateContainerRequest, ExecSyncRequest,
    ExecSyncResponse, ImageSpec, ImageStatusRequest, LinuxContainerConfig, LinuxContainerResources,
    LinuxContainerSecurityContext, LinuxPodSandboxConfig, LinuxSandboxSecurityContext,
    ListContainersRequest, ListPodSandboxRequest, NamespaceMode, NamespaceOption, PodSandboxConfig,
    PodSandboxMetadata, PullImageRequest, RemovePodSandboxRequest, RunPodSandboxRequest,
    StartContainerRequest, StatusRequest, StopContainerRequest, StopPodSandboxRequest,
    UpdateContainerResourcesRequest,
};
use tokio::runtime::{Builder, Runtime};
use tonic::transport::Channel;
use tonic::{Response, Status};

use cwasi_testbed::containerd::Containerd;
use cwasi_testbed::containerd_config::{CRI_HANDLER, CRI_PAUSE};
use cwasi_testbed::image::{Rootfs, Start};
use cwasi_testbed::paths::{self, ContainerdVersion};
use cwasi_testbed::scene::{BUSYBOX, GUESTS, Scene, wait_for};

/// containerd's namespace of pods.
const NAMESPACE: &str = "k8s.io";
/// Seconds until containerd kills what has not stopped: never reached, as functions stop within 10 s.
const STOP_TIMEOUT_S: i64 = 30;
/// Seconds for a process in a container.
const EXEC_TIMEOUT_S: i64 = 30;

/// A connection to one containerd.
#[derive(Debug)]
pub struct Cri {
    runtime: Runtime,
    channel: Channel,
}

/// A pod in the machine's network: one of its own would need CNI plug-ins.
#[derive(Debug)]
pub struct Pod<'a> {
    cri: &'a Cri,
    id: String,
    config: PodSandboxConfig,
}

impl Cri {
    /// A scene of a containerd that ends with it, and its service, which knows the images of guests and of
    /// busybox. `shim` is the runtime's program.
    ///
    /// # Panics
    /// When set-up, build or guests are missing.
    #[must_use]
    pub fn scene(version: ContainerdVersion, shim: &str) -> (Scene, Self) {
        let programs = Path::new(shim).parent().expect("a program lies in a folder");
        let containerd = Containerd::start_with_cri(version, programs);
        let containerd = containerd.unwrap_or_else(|error| panic!("{error:#}"));
        let scene = Scene::on(Arc::new(containerd), programs, NAMESPACE);
        scene.import_busybox();
        let pause = pause_archive(&scene.containerd.ready().dir);
        scene.import(&pause.unwrap_or_else(|error| panic!("{error:#}")));
        let cri = Self::connect(&scene.containerd.ready().address());
        cri.wait_ready();
        for name in [GUESTS, BUSYBOX, CRI_PAUSE] {
            cri.wait_image(name);
        }
        (scene, cri)
    }

    /// Connects to the socket.
    ///
    /// # Panics
    /// When nobody listens there.
    #[must_use]
    pub fn connect(address: &Path) -> Self {
        let runtime = Builder::new_current_thread().enable_all().build().expect("a reactor");
        let channel = runtime
            .block_on(containerd_client::connect(address))
            .unwrap_or_else(|error| panic!("{}: {error}", address.display()));
        Self { runtime, channel }
    }

    /// One request of the runtime service.
    fn try_ask<T, F>(
        &self,
        request: impl FnOnce(RuntimeServiceClient<Channel>) -> F,
    ) -> Result<T, Status>
    where
        F: Future<Output = Result<Response<T>, Status>>,
    {
        let client = RuntimeServiceClient::new(self.channel.clone());
        self.runtime.block_on(request(client)).map(Response::into_inner)
    }

    fn ask<T, F>(&self, request: impl FnOnce(RuntimeServiceClient<Channel>) -> F) -> T
    where
        F: Future<Output = Result<Response<T>, Status>>,
    {
        self.try_ask(request).unwrap_or_else(|status| panic!("{status}"))
    }

    /// Waits until the service says that it is ready, as it is not right after containerd's start.
    pub fn wait_ready(&self) {
        wait_for("the runtime service to be ready", || {
            let request = StatusRequest::default();
            let asked = self.try_ask(|mut client| async move { client.status(request).await });
            let conditions = asked.ok()?.status?.conditions;
            let ready = conditions.iter().any(|one| one.r#type == "RuntimeReady" && one.status);
            ready.then_some(())
        });
    }

    /// Waits until the service knows an image that `ctr` has imported.
    fn wait_image(&self, name: &str) {
        let request = ImageStatusRequest { image: Some(image(name)), verbose: false };
        wait_for(&format!("the image {name}"), || {
            let mut client = ImageServiceClient::new(self.channel.clone());
            let status = self.runtime.block_on(client.image_status(request.clone()));
            status.ok()?.into_inner().image.map(drop)
        });
    }

    /// Pulls an image from its registry.
    ///
    /// # Errors
    /// What the service says when it refuses.
    pub fn pull(&self, name: &str) -> Result<(), Status> {
        let request = PullImageRequest { image: Some(image(name)), ..PullImageRequest::default() };
        let mut client = ImageServiceClient::new(self.channel.clone());
        self.runtime.block_on(client.pull_image(request)).map(drop)
    }

    #[must_use]
    pub fn pods(&self) -> usize {
        let request = ListPodSandboxRequest::default();
        self.ask(|mut client| async move { client.list_pod_sandbox(request).await }).items.len()
    }

    /// Starts a pod with these annotations below the cgroup `parent`, with its logs in a directory.
    #[must_use]
    pub fn run_pod(&self, annotations: &[(&str, &str)], parent: &str, logs: PathBuf) -> Pod<'_> {
        fs::create_dir_all(&logs).expect("a fixture's directory is writable");
        let metadata = PodSandboxMetadata {
            name: "pod".into(),
            uid: "uid".into(),
            namespace: "default".into(),
            attempt: 0,
        };
        let security = LinuxSandboxSecurityContext {
            namespace_options: Some(namespaces()),
            ..LinuxSandboxSecurityContext::default()
        };
        let linux = LinuxPodSandboxConfig {
            cgroup_parent: parent.into(),
            security_context: Some(security),
            ..LinuxPodSandboxConfig::default()
        };
        let annotations = annotations.iter().map(|&(key, value)| (key.into(), value.into()));
        let config = PodSandboxConfig {
            metadata: Some(metadata),
            log_directory: logs.into_os_string().into_string().expect("our paths are UTF-8"),
            annotations: annotations.collect(),
            linux: Some(linux),
            ..PodSandboxConfig::default()
        };
        let request = RunPodSandboxRequest {
            config: Some(config.clone()),
            runtime_handler: CRI_HANDLER.into(),
        };
        let started = self.ask(|mut client| async move { client.run_pod_sandbox(request).await });
        Pod { cri: self, id: started.pod_sandbox_id, config }
    }
}

impl Pod<'_> {
    /// Creates and starts a container, with a memory limit in bytes; its id.
    #[must_use]
    pub fn start(&self, name: &str, from: &str, command: &[&str], memory: Option<i64>) -> String {
        self.try_start(name, from, command, memory).unwrap_or_else(|status| panic!("{status}"))
    }

    /// The same.
    ///
    /// # Errors
    /// What the service says when it refuses.
    pub fn try_start(
        &self,
        name: &str,
        from: &str,
        command: &[&str],
        memory: Option<i64>,
    ) -> Result<String, Status> {
        let security = LinuxContainerSecurityContext {
            namespace_options: Some(namespaces()),
            ..LinuxContainerSecurityContext::default()
        };
        let linux =
            LinuxContainerConfig { resources: memory.map(limit), security_context: Some(security) };
        let config = ContainerConfig {
            metadata: Some(ContainerMetadata { name: name.into(), attempt: 0 }),
            image: Some(image(from)),
            command: words(command),
            log_path: log_name(name),
            linux: Some(linux),
            ..ContainerConfig::default()
        };
        let request = CreateContainerRequest {
            pod_sandbox_id: self.id.clone(),
            config: Some(config),
            sandbox_config: Some(self.config.clone()),
        };
        let created =
            self.cri.try_ask(|mut client| async move { client.create_container(request).await })?;
        let id = created.container_id;
        let request = StartContainerRequest { container_id: id.clone() };
        self.cri.try_ask(|mut client| async move { client.start_container(request).await })?;
        Ok(id)
    }

    /// Number of containers, whatever their state.
    #[must_use]
    pub fn containers(&self) -> usize {
        let request = ListContainersRequest::default();
        let list = self.cri.ask(|mut client| async move { client.list_containers(request).await });
        list.containers.len()
    }

    /// What the service says of a container.
    ///
    /// # Panics
    /// When it does not know it.
    #[must_use]
    pub fn status(&self, id: &str) -> ContainerStatus {
        let request = ContainerStatusRequest { container_id: id.into(), verbose: false };
        let answer =
            self.cri.ask(|mut client| async move { client.container_status(request).await });
        answer.status.expect("the service knows the container")
    }

    /// Whether a container runs.
    #[must_use]
    pub fn runs(&self, id: &str) -> bool {
        self.status(id).state == ContainerState::ContainerRunning as i32
    }

    /// Exit code of a container, and the reason that the service gives, once it has ended.
    #[must_use]
    pub fn wait_exit(&self, id: &str) -> (i32, String) {
        wait_for(&format!("the exit of {id}"), || {
            let status = self.status(id);
            let ended = status.state == ContainerState::ContainerExited as i32;
            ended.then_some((status.exit_code, status.reason))
        })
    }

    /// Lines of a container on stdout.
    ///
    /// # Panics
    /// When it has no log.
    #[must_use]
    pub fn log(&self, name: &str) -> Vec<String> {
        let path = Path::new(&self.config.log_directory).join(log_name(name));
        let text =
            fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        // Each line begins with its time, its stream, and whether it is a whole one.
        let said = |line: &str| match line.splitn(4, ' ').collect::<Vec<_>>()[..] {
            [_, "stdout", _, text] => Some(text.to_owned()),
            _ => None,
        };
        text.lines().filter_map(said).collect()
    }

    /// Runs a process in a container to its end.
    ///
    /// # Errors
    /// What the service says when it refuses.
    pub fn exec(&self, id: &str, command: &[&str]) -> Result<ExecSyncResponse, Status> {
        let request = ExecSyncRequest {
            container_id: id.into(),
            cmd: words(command),
            timeout: EXEC_TIMEOUT_S,
        };
        self.cri.try_ask(|mut client| async move { client.exec_sync(request).await })
    }

    /// Processor time and memory of a container.
    ///
    /// # Panics
    /// When the service does not know it.
    #[must_use]
    pub fn stats(&self, id: &str) -> ContainerStats {
        let request = ContainerStatsRequest { container_id: id.into() };
        let answer =
            self.cri.ask(|mut client| async move { client.container_stats(request).await });
        answer.stats.expect("the service knows the container")
    }

    /// Gives a container another memory limit.
    pub fn update_memory(&self, id: &str, memory: i64) {
        let request = UpdateContainerResourcesRequest {
            container_id: id.into(),
            linux: Some(limit(memory)),
            windows: None,
            annotations: HashMap::new(),
        };
        self.cri.ask(|mut client| async move { client.update_container_resources(request).await });
    }

    /// Asks a container to end and waits for that.
    pub fn stop(&self, id: &str) {
        let request = StopContainerRequest { container_id: id.into(), timeout: STOP_TIMEOUT_S };
        self.cri.ask(|mut client| async move { client.stop_container(request).await });
    }

    /// Ends the pod with all its containers.
    pub fn remove(self) {
        let request = StopPodSandboxRequest { pod_sandbox_id: self.id.clone() };
        self.cri.ask(|mut client| async move { client.stop_pod_sandbox(request).await });
        let request = RemovePodSandboxRequest { pod_sandbox_id: self.id };
        self.cri.ask(|mut client| async move { client.remove_pod_sandbox(request).await });
    }
}

/// A program that waits until it is killed, as Kubernetes' pause does.
fn pause_archive(dir: &Path) -> anyhow::Result<PathBuf> {
    let archive = dir.join("pause.tar");
    let mut rootfs = Rootfs::default();
    rootfs.file(&paths::busybox()?, "busybox")?;
    let entrypoint = ["/busybox", "sleep", "infinity"].map(str::to_owned).to_vec();
    rootfs.write(CRI_PAUSE, &Start { entrypoint, ..Start::default() }, &archive)?;
    Ok(archive)
}

/// Processes see their own container's alone, as in Kubernetes.
fn namespaces() -> NamespaceOption {
    NamespaceOption {
        network: NamespaceMode::Node as i32,
        pid: NamespaceMode::Container as i32,
        ..NamespaceOption::default()
    }
}

fn limit(memory: i64) -> LinuxContainerResources {
    LinuxContainerResources { memory_limit_in_bytes: memory, ..LinuxContainerResources::default() }
}

fn image(name: &str) -> ImageSpec {
    ImageSpec { image: name.into(), ..ImageSpec::default() }
}

fn words(command: &[&str]) -> Vec<String> {
    command.iter().map(|&word| word.to_owned()).collect()
}

fn log_name(container: &str) -> String {
    format!("{container}.log")
}
