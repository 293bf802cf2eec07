//! The verbs on a process that `Exec` has added to a task: exec, start, state, kill, wait, delete, close, resize.

use std::sync::Arc;

use containerd_shim::api::{
    CloseIORequest, DeleteResponse, Empty, ExecProcessRequest, ResizePtyRequest, StartResponse,
    StateResponse,
};
use containerd_shim::protos::events::task::{TaskExecAdded, TaskExecStarted, TaskExit};
use tokio::sync::oneshot;

use super::blocking::blocking;
use super::container::{self, Container};
use super::error::TaskError;
use super::exec::{Exec, Status};
use super::stdio::{Stdio, open};
use super::table::Tasks;
use crate::publisher::timestamp;
use crate::reaper::Exit;
use cwasi_sys::pidfd::PidFd;
use cwasi_sys::terminal_size::Size;
use cwasi_wire::control::{ExecSpec, Verb, VerbReply};

impl Tasks {
    /// Adds a process to a task; it runs when it is started.
    ///
    /// # Errors
    /// When the task is a function or has ended, or the id is taken.
    pub fn exec(&self, request: &ExecProcessRequest) -> Result<Empty, TaskError> {
        let container = self.find(&request.id)?;
        if let Some(function) = &container.function {
            let (id, function) = (container.id.clone(), function.name.clone());
            return Err(TaskError::NoExec { id, function });
        }
        accepts_processes(&container)?;
        let process = with_terminal(&request.spec().value, request.terminal).map_err(|source| {
            let problem = format!("the process to execute is no JSON object: {source}");
            TaskError::Invalid { id: container.id.clone(), problem }
        })?;
        let stdio = Stdio {
            stdin: request.stdin.clone(),
            stdout: request.stdout.clone(),
            stderr: request.stderr.clone(),
        };
        let (terminal, id) = (request.terminal, request.exec_id.as_str());
        container.execs.add(Exec::new(&container.id, id, process, terminal, stdio))?;
        let mut event = TaskExecAdded::new();
        event.set_container_id(container.id.clone());
        event.set_exec_id(id.to_owned());
        self.parts.publisher.publish(event);
        Ok(Empty::new())
    }

    /// The process with this id.
    ///
    /// # Errors
    /// When there is no such task or process.
    pub fn find_exec(
        &self,
        id: &str,
        exec_id: &str,
    ) -> Result<(Arc<Container>, Arc<Exec>), TaskError> {
        let container = self.find(id)?;
        let exec = container.execs.find(exec_id).ok_or_else(|| TaskError::NoSuchProcess {
            id: id.to_owned(),
            exec_id: exec_id.to_owned(),
        })?;
        Ok((container, exec))
    }

    /// Starts it. When that fails it can be started again, or deleted.
    ///
    /// # Errors
    /// When it was started before, or cannot be.
    pub async fn start_exec(
        self: &Arc<Self>,
        id: &str,
        exec_id: &str,
    ) -> Result<StartResponse, TaskError> {
        let (container, exec) = self.find_exec(id, exec_id)?;
        let _verbs = exec.verbs.lock().await;
        if exec.status() != Status::Created {
            return Err(exec.refuse("start"));
        }
        accepts_processes(&container)?;
        let exit = self.run_exec(&container, &exec).await?;
        let pid = exec.status().api_pid();
        let mut event = TaskExecStarted::new();
        event.set_container_id(container.id.clone());
        event.set_exec_id(exec.id.clone());
        event.set_pid(pid);
        self.parts.publisher.publish(event);
        let (tasks, watched) = (Arc::clone(self), Arc::clone(&exec));
        tokio::spawn(async move { tasks.watch_exec(&watched, exit).await });
        if matches!(container.status(), container::Status::Stopped(_)) {
            // Without a pid namespace of the container's own, it would go on alone; it may have ended already.
            let _gone = exec.signal(libc::SIGKILL);
        }
        let mut response = StartResponse::new();
        response.set_pid(pid);
        Ok(response)
    }

    async fn run_exec(
        self: &Arc<Self>,
        container: &Container,
        exec: &Exec,
    ) -> Result<oneshot::Receiver<Exit>, TaskError> {
        let (stdio, terminal) = (exec.stdio.clone(), exec.terminal);
        let (tasks, id) = (Arc::clone(self), container.id.clone());
        let opening = move || {
            let open = if terminal { open::open_terminal } else { open::open_exec };
            Ok(open(&stdio, tasks.logged(&id))?)
        };
        let (streams, mut relay) = blocking(&container.id, opening).await?;
        let spec = ExecSpec { bundle: container.bundle.clone(), process: exec.process.clone() };
        let verb = Verb::Exec(Box::new(spec));
        let ticket = self.parts.reaper.ticket();
        let created = self.parts.run_verb(&container.key, verb, &streams.in_order()).await?;
        let (reply, descriptors) = created;
        let VerbReply::Created { pid } = reply else {
            let reason = format!("the builder answered {reply:?} to exec");
            return Err(TaskError::NotStarted { id: exec.name(), reason });
        };
        let exit = ticket.claim(pid);
        if let Some(size) = exec.relay().size() {
            // A terminal that is not there yet only keeps it.
            drop(relay.resize(size));
        }
        relay.serve(descriptors.into_iter().next());
        *exec.relay() = relay;
        exec.started(pid, PidFd::open(pid).ok());
        Ok(exit)
    }

    /// Publishes the end of the process.
    async fn watch_exec(&self, exec: &Exec, exit: oneshot::Receiver<Exit>) {
        let exit = exit.await.unwrap_or_else(|_| Exit::unseen());
        let mut event = TaskExit::new();
        event.set_container_id(exec.container.clone());
        event.set_id(exec.id.clone());
        event.set_pid(exec.status().api_pid());
        event.set_exit_status(exit.api_status());
        event.set_exited_at(timestamp(exit.at));
        self.parts.publisher.publish(event);
        // Last: a client that waits for it may delete the process at once.
        exec.ended(exit);
    }

    /// Removes a process that has ended, or was never started.
    ///
    /// # Errors
    /// When it runs.
    pub async fn delete_exec(&self, id: &str, exec_id: &str) -> Result<DeleteResponse, TaskError> {
        let (container, exec) = self.find_exec(id, exec_id)?;
        let _verbs = exec.verbs.lock().await;
        // Two deletes at once: the second finds nothing left.
        self.find_exec(id, exec_id)?;
        let status = exec.status();
        match status {
            Status::Running(_) => return Err(exec.refuse("delete")),
            Status::Created => exec.given_up(),
            Status::Stopped(..) => {}
        }
        let relay = std::mem::take(&mut *exec.relay());
        relay.finish().await;
        container.execs.forget(&exec.id);
        let exit = exec.exit().await;
        let mut response = DeleteResponse::new();
        response.set_pid(exec.status().api_pid());
        // As with runc: what was never started has not failed, though it has not succeeded for those who wait either.
        let started = status != Status::Created;
        response.set_exit_status(if started { exit.api_status() } else { 0 });
        response.set_exited_at(timestamp(exit.at));
        Ok(response)
    }

    /// Where the process is in its life.
    ///
    /// # Errors
    /// When there is no such task or process.
    pub fn state_exec(&self, id: &str, exec_id: &str) -> Result<StateResponse, TaskError> {
        let (container, exec) = self.find_exec(id, exec_id)?;
        let status = exec.status();
        let mut response = StateResponse::new();
        response.set_id(container.id.clone());
        response.set_exec_id(exec.id.clone());
        response.set_bundle(container.bundle.display().to_string());
        response.set_pid(status.api_pid());
        response.set_status(status.api());
        response.set_stdin(exec.stdio.stdin.clone());
        response.set_stdout(exec.stdio.stdout.clone());
        response.set_stderr(exec.stdio.stderr.clone());
        response.set_terminal(exec.terminal);
        if let Status::Stopped(_, exit) = status {
            response.set_exit_status(exit.api_status());
            response.set_exited_at(timestamp(exit.at));
        }
        Ok(response)
    }

    /// Ends the input of the task, or of another process in it.
    ///
    /// # Errors
    /// When there is no such task or process.
    pub fn close_io(&self, request: &CloseIORequest) -> Result<Empty, TaskError> {
        if !request.stdin {
            return Ok(Empty::new());
        }
        if request.exec_id.is_empty() {
            self.find(&request.id)?.relay().close_input();
        } else {
            self.find_exec(&request.id, &request.exec_id)?.1.relay().close_input();
        }
        Ok(Empty::new())
    }

    /// Sets the size of a terminal, of init or another process.
    ///
    /// # Errors
    /// When there is no such task or process, or the kernel refuses.
    pub fn resize_pty(&self, request: &ResizePtyRequest) -> Result<Empty, TaskError> {
        let side = |length: u32| u16::try_from(length).unwrap_or(u16::MAX);
        let size = Size { columns: side(request.width), rows: side(request.height) };
        let resized = if request.exec_id.is_empty() {
            self.find(&request.id)?.relay().resize(size)
        } else {
            self.find_exec(&request.id, &request.exec_id)?.1.relay().resize(size)
        };
        resized.map_err(|source| {
            let operation = "setting the size of its terminal";
            TaskError::System { id: request.id.clone(), operation, source }
        })?;
        Ok(Empty::new())
    }
}

/// The process to execute, a JSON text, with what the request says about its terminal: clients pass on a process of the
/// container, which may have said otherwise.
fn with_terminal(process: &[u8], terminal: bool) -> serde_json::Result<String> {
    let mut process: serde_json::Map<String, serde_json::Value> = serde_json::from_slice(process)?;
    process.insert("terminal".to_owned(), terminal.into());
    serde_json::to_string(&process)
}

/// Refuses processes in a task that has ended or is frozen.
fn accepts_processes(container: &Container) -> Result<(), TaskError> {
    match container.status() {
        container::Status::Created | container::Status::Running => Ok(()),
        container::Status::Paused | container::Status::Stopped(_) => Err(container.refuse("exec")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_request_decides_about_a_terminal() {
        for (process, terminal, expected) in [
            (r#"{"args":["a"]}"#, true, r#"{"args":["a"],"terminal":true}"#),
            (r#"{"args":["a"],"terminal":true}"#, false, r#"{"args":["a"],"terminal":false}"#),
        ] {
            assert_eq!(with_terminal(process.as_bytes(), terminal).unwrap(), expected);
        }
        assert!(with_terminal(b"[]", true).is_err());
    }
}
