//! An independent runner: `client URL TOKEN DIRECTORY AT_A_TIME` runs jobs with `sh` below the directory until it is
//! killed.
//!
//! What the jobs before left is unpacked first; everything that a job leaves in its directory may be an artifact.

use std::borrow::Cow;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use futures::io::Cursor;
use gitlab_runner::job::Job;
use gitlab_runner::{GitlabLayer, JobHandler, JobResult, Phase, RunnerBuilder, UploadableFile};
use tokio::io::AsyncReadExt;
use tokio::process::Command;
use tracing_subscriber::prelude::*;
use url::Url;

const PAUSE: Duration = Duration::from_millis(200);

#[tokio::main]
async fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [url, token, directory, at_a_time] = arguments.as_slice() else {
        eprintln!("usage: client URL TOKEN DIRECTORY AT_A_TIME");
        std::process::exit(2);
    };
    let url = Url::parse(url).expect("URL is an address");
    let at_a_time = at_a_time.parse().expect("AT_A_TIME is a number");
    let (layer, jobs) = GitlabLayer::new();
    let warnings = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
    let warnings = warnings.with_filter(tracing_subscriber::filter::LevelFilter::WARN);
    tracing_subscriber::registry().with(layer).with(warnings).init();
    let builder = RunnerBuilder::new(url, token.as_str(), directory.as_str(), jobs);
    let mut runner = builder.system_id("r_peersclient0").build().await;
    loop {
        runner.wait_for_space(at_a_time).await;
        match runner.request_job(|job| async move { Ok(Shell { job }) }).await {
            Ok(true) => continue,
            Ok(false) => (),
            Err(error) => eprintln!("no job: {error}"),
        }
        tokio::time::sleep(PAUSE).await;
    }
}

struct Shell {
    job: Job,
}

impl Shell {
    async fn unpack(&self) -> JobResult {
        for dependency in self.job.dependencies() {
            let found = dependency.download().await;
            let archive = found.map_err(|error| self.job.trace(format!("{}: {error}\n", dependency.name())))?;
            let Some(mut archive) = archive else { continue };
            for number in 0..archive.len() {
                let mut file = archive.by_index(number).ok_or(())?;
                let to = self.job.build_dir().join(file.path().ok_or(())?);
                let mut content = Vec::new();
                file.read_to_end(&mut content).map_err(drop)?;
                std::fs::create_dir_all(to.parent().ok_or(())?).map_err(drop)?;
                std::fs::write(to, content).map_err(drop)?;
            }
        }
        Ok(())
    }

    async fn run(&self, script: &str) -> JobResult {
        let mut child = Command::new("sh")
            .args(["-ec", script])
            .current_dir(self.job.build_dir())
            .envs(self.job.variables().map(|each| (each.key().to_string(), each.value().to_string())))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .map_err(drop)?;
        let mut output = child.stdout.take().ok_or(())?;
        let mut piece = vec![0; 1 << 16];
        loop {
            match output.read(&mut piece).await.map_err(drop)? {
                0 => break,
                size => self.job.trace(&piece[..size]),
            }
        }
        if child.wait().await.map_err(drop)?.success() { Ok(()) } else { Err(()) }
    }
}

#[async_trait::async_trait]
impl JobHandler<Left> for Shell {
    async fn step(&mut self, script: &[String], phase: Phase) -> JobResult {
        if phase == Phase::Script {
            self.unpack().await?;
        }
        self.run(&script.join("\n")).await
    }

    async fn get_uploadable_files(&mut self) -> Result<Box<dyn Iterator<Item = Left> + Send>, ()> {
        let root = self.job.build_dir();
        let mut found = Vec::new();
        find(root, root, &mut found).map_err(drop)?;
        Ok(Box::new(found.into_iter()))
    }
}

/// A file that a job left.
struct Left {
    path: PathBuf,
    name: String,
}

#[async_trait::async_trait]
impl UploadableFile for Left {
    type Data<'a> = Cursor<Vec<u8>>;

    fn get_path(&self) -> Cow<'_, str> {
        Cow::from(&self.name)
    }

    async fn get_data(&self) -> Result<Self::Data<'_>, ()> {
        std::fs::read(&self.path).map(Cursor::new).map_err(drop)
    }
}

fn find(root: &Path, directory: &Path, found: &mut Vec<Left>) -> std::io::Result<()> {
    for entry in std::fs::read_dir(directory)? {
        let path = entry?.path();
        if path.is_dir() {
            find(root, &path, found)?;
        } else if let Ok(name) = path.strip_prefix(root) {
            let name = name.to_string_lossy().into_owned();
            found.push(Left { path, name });
        }
    }
    Ok(())
}
