// Submits a job to the API at argv[2] by types that openapi-typescript has made, and prints its answer.
import createClient from "openapi-fetch";
import type { paths } from "./planq.js";

declare const process: { argv: string[] };

const client = createClient<paths>({ baseUrl: process.argv[2] });
const submitted = await client.POST("/jobs", { body: { input: "calculate 6*7" } });
if (submitted.error) throw new Error(submitted.error.detail);
const at = { path: { job_id: submitted.data.id }, query: { wait: 30 } };
const ended = await client.GET("/jobs/{job_id}", { params: at });
if (ended.error) throw new Error(ended.error.detail);
console.log(ended.data.status, ended.data.answer);
