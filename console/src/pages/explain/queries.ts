import { keepPreviousData, useQuery } from "@tanstack/react-query";
import { request } from "../../api/client";
import type { ProblemError } from "../../api/problems";
import type { Explanation, Question } from "./model";

export function useExplanation(question: Question | null) {
  return useQuery<Explanation, ProblemError>({
    queryKey: ["/v1/explain", JSON.stringify(question)],
    queryFn: ({ signal }) => request<Explanation>("POST", "/v1/explain", { body: question, signal }),
    enabled: question !== null,
    placeholderData: keepPreviousData,
  });
}
